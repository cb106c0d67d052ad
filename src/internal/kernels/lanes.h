// Reductions of rows in an order that a block of GPU threads and a loop on the CPU share, so that both give the same
// bits.
//
// Element e of a row belongs to lane e % (kVector * kWarp * warps), and a lane combines its elements in ascending
// order. Lanes are combined by `fold`: kVector neighbors (a thread), then kWarp threads (a warp), then the warps of the
// block.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtensor::lanes {

// Element types of kernels.
enum class Type : std::uint8_t { f32, f64, f16, bf16 };

inline constexpr int kVector = 8, kWarp = 32;

// Combines the lanes of groups of `kGroup` neighbors into the first `lanes / kGroup` elements.
template <int kGroup, class S, class Combine>
void fold(S* lanes, int count, const Combine& combine) {
  for (int group = 0; group < count; ++group) {
    S* own = lanes + group * kGroup;
    for (int half = kGroup / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) own[i] = combine(own[i], own[i + half]);
    }
    lanes[group] = own[0];
  }
}

// combine(...) over value(i) of the row's elements i, which starts at `identity`.
template <int kWarps, class S, class Value, class Combine>
S reduce_row(std::int64_t elements, S identity, const Value& value, const Combine& combine) {
  constexpr int kLanes = kVector * kWarp * kWarps;
  alignas(64) S lanes[kLanes];
  const auto used = std::min<std::int64_t>(elements, kLanes);
  const auto groups = static_cast<int>((used + kVector - 1) / kVector);
  std::fill_n(lanes, groups * kVector, identity);
  for (std::int64_t begin = 0; begin < elements; begin += kLanes) {
    const auto length = std::min<std::int64_t>(elements - begin, kLanes);
    for (std::int64_t i = 0; i < length; ++i) lanes[i] = combine(lanes[i], value(begin + i));
  }
  fold<kVector>(lanes, groups, combine);
  const int warps = (groups + kWarp - 1) / kWarp;
  std::fill(lanes + groups, lanes + warps * kWarp, identity);
  fold<kWarp>(lanes, warps, combine);
  std::fill(lanes + warps, lanes + kWarps, identity);
  fold<kWarps>(lanes, 1, combine);
  return lanes[0];
}

template <class S>
S add(S a, S b) {
  return a + b;
}

}  // namespace dtensor::lanes
