// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11): a bijection of a
// 128-bit counter under a 64-bit key. Consecutive counters give statistically independent words. This header is C++
// without ATen for host and device, so that CPU and CUDA share every bit.
//
// The key is the seed, the counter is (block, number of the random operator). Element e of a global tensor uses word
// e % 4 of block e / 4. If it needs 64 bits, it uses words 2 (e % 2) and 2 (e % 2) + 1 of block e / 2.
#pragma once

#include <cstdint>

#include "internal/kernels/host_device.h"

namespace dtensor {

// The key of one random operator: the world's seed and the operator's number.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t op = 0;
};

namespace philox {

struct Words {
  std::uint32_t w[4];
};

DTENSOR_HD void round(Words& c, std::uint32_t k0, std::uint32_t k1) {
  const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c.w[0];
  const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c.w[2];
  c = {{static_cast<std::uint32_t>(p1 >> 32) ^ c.w[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ c.w[3] ^ k1, static_cast<std::uint32_t>(p0)}};
}

DTENSOR_HD Words generate(Words counter, std::uint32_t k0, std::uint32_t k1) {
  for (int i = 0; i < 10; ++i) {
    round(counter, k0, k1);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return counter;
}

DTENSOR_HD std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
DTENSOR_HD std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

DTENSOR_HD Words block(RandomKey key, std::uint64_t index) {
  return generate({{low(index), high(index), low(key.op), high(key.op)}}, low(key.seed), high(key.seed));
}

DTENSOR_HD std::uint64_t word64(const Words& words, int i) {
  return (std::uint64_t{words.w[2 * i + 1]} << 32) | words.w[2 * i];
}

}  // namespace philox
}  // namespace dtensor
