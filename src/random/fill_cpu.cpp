// The CPU kernel: fills runs of consecutive global indices in batches of blocks, with loops that the compiler
// vectorizes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include <ATen/Dispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "internal/contiguous_ranges.h"
#include "random/fill.h"

namespace dtensor {
namespace {

// Saturates values that exceed an integer type (geometric distribution).
template <class T, class Value>
T convert(Value value) {
  if constexpr (std::is_same_v<Value, double> && std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const auto largest = static_cast<double>(std::numeric_limits<T>::max());
    return value < largest ? static_cast<T>(value) : std::numeric_limits<T>::max();
  } else {
    return static_cast<T>(value);
  }
}

constexpr int kBatch = 64;  // blocks per batch; the compiler vectorizes the loops over a batch

template <class T, class Dist>
[[gnu::always_inline]] inline void batch_body(T* out, std::uint64_t block, RandomKey key, const Dist& dist) {
  constexpr int kPer = Dist::kPerBlock;
  std::uint32_t words[4][kBatch];
  typename Dist::Value values[kPer][kBatch];
  for (int i = 0; i < kBatch; ++i) {
    const auto w = philox::block(key, block + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[j][i] = w.w[j];
  }
  for (int i = 0; i < kBatch; ++i) {
    typename Dist::Value v[kPer];
    dist({{words[0][i], words[1][i], words[2][i], words[3][i]}}, v);
    for (int j = 0; j < kPer; ++j) values[j][i] = v[j];
  }
  for (int i = 0; i < kBatch; ++i) {
    for (int j = 0; j < kPer; ++j) out[i * kPer + j] = convert<T>(values[j][i]);
  }
}

template <class T, class Dist>
void fill_batch(T* out, std::uint64_t block, RandomKey key, const Dist& dist) {
  batch_body(out, block, key, dist);
}

// The same code for wider registers. It has no fused operations, so the bits are equal.
#if defined(__x86_64__)
template <class T, class Dist>
[[gnu::target("avx2")]] void fill_batch_avx2(T* out, std::uint64_t block, RandomKey key, const Dist& dist) {
  batch_body(out, block, key, dist);
}

template <class T, class Dist>
auto batch_function() {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  return wide ? &fill_batch_avx2<T, Dist> : &fill_batch<T, Dist>;
}
#else
template <class T, class Dist>
auto batch_function() {
  return &fill_batch<T, Dist>;
}
#endif

// Fills the elements first .. first + n - 1, which are in one block.
template <class T, class Dist>
void fill_part(T* out, std::uint64_t first, std::int64_t n, RandomKey key, const Dist& dist) {
  constexpr int kPer = Dist::kPerBlock;
  typename Dist::Value values[kPer];
  dist(philox::block(key, first / kPer), values);
  for (std::int64_t i = 0; i < n; ++i) out[i] = convert<T>(values[first % kPer + static_cast<std::uint64_t>(i)]);
}

template <class T, class Dist>
void fill_run(T* out, std::uint64_t first, std::int64_t n, RandomKey key, const Dist& dist) {
  constexpr std::int64_t kPer = Dist::kPerBlock;
  const auto batch = batch_function<T, Dist>();
  while (n > 0) {
    const auto in_block = kPer - static_cast<std::int64_t>(first % kPer);
    auto done = std::min(n, in_block);
    if (in_block == kPer && n >= kPer * kBatch) {
      done = kPer * kBatch;
      batch(out, first / kPer, key, dist);
    } else {
      fill_part(out, first, done, key, dist);
    }
    out += done;
    first += static_cast<std::uint64_t>(done);
    n -= done;
  }
}

template <class T, class Dist>
void fill_typed(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Dist& dist) {
  auto* out = local.mutable_data_ptr<T>();
  const ContiguousRanges ranges(region.sizes, region.segments);
  ranges.each(0, ranges.numel(), [&](std::int64_t offset, const ContiguousRanges::Range& range) {
    fill_run(out + offset, static_cast<std::uint64_t>(range.global), range.length, key, dist);
  });
}

template <class Dist>
void fill_with(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Dist& dist) {
  const auto dtype = local.scalar_type();
  if constexpr (std::is_same_v<typename Dist::Value, float>) {
    AT_DISPATCH_SWITCH(dtype, "random fill", AT_DISPATCH_CASE(at::kFloat, [&] {
                         fill_typed<scalar_t>(local, region, key, dist);
                       }) AT_DISPATCH_CASE(at::kHalf, [&] {
                         fill_typed<scalar_t>(local, region, key, dist);
                       }) AT_DISPATCH_CASE(at::kBFloat16, [&] { fill_typed<scalar_t>(local, region, key, dist); }));
  } else {
    AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, dtype, "random fill",
                               [&] { fill_typed<scalar_t>(local, region, key, dist); });
  }
}

}  // namespace

bool fill_cpu(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution) {
  std::visit([&](const auto& dist) { fill_with(local, region, key, dist); }, distribution);
  return true;
}

}  // namespace dtensor
