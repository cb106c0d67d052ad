// Hashes that are equal in every process, for comparisons between ranks and table keys.
#pragma once

#include <cstdint>
#include <string_view>

namespace dtensor {

// Adds a word to `hash`: a multiplication (constant of MurmurHash3's finalizer) and a shift that mixes high bits down.
inline std::uint64_t hash_combine(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

// FNV-1a.
inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace dtensor
