// A counter-based random number that depends on seed and index only, so that every rank and mesh draws the same.
#pragma once

#include <cstdint>

namespace train {

// The splitmix64 finalizer (Steele, Lea, Flood, OOPSLA'14) of (seed << 32) + index + 1 times the golden ratio.
inline std::uint64_t hash64(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = ((seed << 32) + index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace train
