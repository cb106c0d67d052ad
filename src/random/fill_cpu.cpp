// The CPU kernel: whole blocks of random words along runs of consecutive global indices.
#include <ATen/Dispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "random/fill.h"

namespace dtensor {
namespace {

// Values outside an integer type (a geometric draw) stop at its largest.
template <class T, class Value>
T convert(Value value) {
  if constexpr (std::is_same_v<Value, double> && std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const auto largest = static_cast<double>(std::numeric_limits<T>::max());
    return value < largest ? static_cast<T>(value) : std::numeric_limits<T>::max();
  } else {
    return static_cast<T>(value);
  }
}

template <class T, class Dist>
void fill_run(T* out, std::uint64_t first, std::int64_t n, RandomKey key, const Dist& dist) {
  constexpr int kPer = Dist::kPerBlock;
  typename Dist::Value values[kPer];
  auto block = first / kPer;
  int skip = static_cast<int>(first % kPer);
  while (n > 0) {
    dist(philox::block(key, block++), values);
    const auto take = static_cast<int>(std::min<std::int64_t>(n, kPer - skip));
    for (int i = 0; i < take; ++i) {
      out[i] = convert<T>(values[skip + i]);
    }
    out += take;
    n -= take;
    skip = 0;
  }
}

template <class T, class Dist>
void fill_typed(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Dist& dist) {
  auto* out = local.mutable_data_ptr<T>();
  Runs(region).for_each([&](std::int64_t offset, std::int64_t first, std::int64_t n) {
    fill_run(out + offset, static_cast<std::uint64_t>(first), n, key, dist);
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

void fill_cpu(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution) {
  std::visit([&](const auto& dist) { fill_with(local, region, key, dist); }, distribution);
}

}  // namespace dtensor
