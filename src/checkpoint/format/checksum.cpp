// The mixing function adds a Weyl sequence of the index to the bits, followed by two rounds of xor-shift and odd
// multiplication. For a given index it is a bijection, so a change of one element always changes the sum.
#include "checkpoint/format/checksum.h"

#include <c10/util/Exception.h>

#include <cstring>

namespace dtensor::files {
namespace {

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  return z ^ (z >> 32);
}

constexpr std::int64_t kBatch = 64;  // elements; a loop of this fixed length is vectorized by the compiler

template <class Word>
[[gnu::always_inline]] inline std::uint64_t sum_body(const char* data, std::int64_t count, std::uint64_t first) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;
  std::uint64_t sum = 0, weyl = first * kGolden;
  const auto add = [&](std::int64_t elements) __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < elements; ++i) {
      Word bits;
      std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
      sum += mix(bits + weyl + static_cast<std::uint64_t>(i) * kGolden);
    }
    data += elements * static_cast<std::int64_t>(sizeof(Word));
    weyl += static_cast<std::uint64_t>(elements) * kGolden;
  };
  for (; count >= kBatch; count -= kBatch) add(kBatch);
  add(count);
  return sum;
}

// The same loop for CPUs with AVX-512DQ, which multiplies eight 64-bit numbers per instruction: twice as fast. So
// verifying a folder in the page cache takes about as long as reading it.
#if defined(__x86_64__)
template <class Word>
[[gnu::target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")]] std::uint64_t sum_wide(
    const char* data, std::int64_t count, std::uint64_t first) {
  return sum_body<Word>(data, count, first);
}

bool have_wide() {
  static const bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  return yes;
}

template <class Word>
std::uint64_t sum_of(const char* data, std::int64_t count, std::uint64_t first) {
  return have_wide() ? sum_wide<Word>(data, count, first) : sum_body<Word>(data, count, first);
}
#else
template <class Word>
std::uint64_t sum_of(const char* data, std::int64_t count, std::uint64_t first) {
  return sum_body<Word>(data, count, first);
}
#endif

}  // namespace

Checksum checksum(const char* data, std::int64_t item, std::int64_t count, std::int64_t first) {
  const auto index = static_cast<std::uint64_t>(first);
  switch (item) {
    case 1:
      return {sum_of<std::uint8_t>(data, count, index), count};
    case 2:
      return {sum_of<std::uint16_t>(data, count, index), count};
    case 4:
      return {sum_of<std::uint32_t>(data, count, index), count};
    case 8:
      return {sum_of<std::uint64_t>(data, count, index), count};
    default:
      TORCH_CHECK(false, "checksum: expected elements of 1, 2, 4 or 8 bytes, got ", item, " bytes");
  }
}

}  // namespace dtensor::files
