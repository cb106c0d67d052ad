// Loops on the CPU: one thread computes each row, in the order of sums of the CUDA kernels (row_arithmetic.h).
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "internal/kernels/lanes.h"
#include "parallel/loss/row_kernels.h"

namespace dtensor::loss_rows {
namespace {

template <class T, class S>
S largest_of(const T* row, std::int64_t classes) {
  return lanes::reduce_row<kWarps>(
      classes, lowest<S>(), [&](auto i) { return static_cast<S>(row[i]); }, larger<S>);
}

// Calls fn(row index, pointer to the row) in parallel.
template <class T, class Fn>
void each_row(const at::Tensor& values, const Fn& fn) {
  constexpr std::int64_t kGrain = 1 << 14;  // minimum number of elements per thread
  auto* data = const_cast<T*>(values.const_data_ptr<T>());
  const auto grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, values.size(1)));
  at::parallel_for(0, values.size(0), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) fn(t, data + t * values.stride(0));
  });
}

template <class T, class S>
void sums_of(const Rows& rows, S* top, bool finds_top, S* sums) {
  const auto tokens = rows.values.size(0);
  const auto* targets = rows.targets.const_data_ptr<std::int64_t>();
  const S* weight = rows.weight.defined() ? rows.weight.const_data_ptr<S>() : nullptr;
  each_row<T>(rows.values, [&](std::int64_t t, const T* row) {
    if (finds_top) top[t] = largest_of<T, S>(row, rows.classes);
    const S most = top[t];
    const auto shifted = [&](std::int64_t i) { return static_cast<S>(row[i]) - most; };
    const auto target = targets[t] - rows.first;
    const bool here = target >= 0 && target < rows.classes;
    const auto exponential = [&](std::int64_t i) { return dist::exp_of(shifted(i)); };
    sums[kExponentials * tokens + t] = lanes::reduce_row<kWarps>(rows.classes, S(0), exponential, lanes::add<S>);
    sums[kTarget * tokens + t] = here ? shifted(target) : S(0);
    sums[kTargetWeight * tokens + t] = here ? (weight != nullptr ? weight[target] : S(1)) : S(0);
    if (!rows.smooths) return;
    const auto weighted = [&](std::int64_t i) { return weight != nullptr ? weight[i] * shifted(i) : shifted(i); };
    sums[kSmoothing * tokens + t] = lanes::reduce_row<kWarps>(rows.classes, S(0), weighted, lanes::add<S>);
  });
}

template <class T, class S>
void gradients_of(const Rows& rows, const S* factors, const at::Tensor& out) {
  const auto tokens = rows.values.size(0);
  const auto* targets = rows.targets.const_data_ptr<std::int64_t>();
  const S* weight = rows.weight.defined() ? rows.weight.const_data_ptr<S>() : nullptr;
  const T* values = rows.values.const_data_ptr<T>();
  each_row<T>(out, [&](std::int64_t t, T* to) {
    const auto factor = [&](Factor f) { return factors[f * tokens + t]; };
    const GradientRow<S> row{factor(kLogSum), factor(kSoftmax), factor(kSmooth), factor(kPeak),
                             targets[t] - rows.first};
    const T* from = values + t * rows.values.stride(0);
    for (std::int64_t i = 0; i < rows.classes; ++i) {
      const S w = weight != nullptr ? weight[i] : S(1);
      to[i] = static_cast<T>(gradient_of(row, static_cast<S>(from[i]), w, i));
    }
    std::fill(to + rows.classes, to + out.size(1), T(0));
  });
}

#define DTENSOR_DISPATCH_ROWS(...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.values.scalar_type(), "cross_entropy", __VA_ARGS__)

}  // namespace

void largest_loop(const Rows& rows, const at::Tensor& top) {
  DTENSOR_DISPATCH_ROWS([&] {
    using S = at::opmath_type<scalar_t>;
    auto* out = top.mutable_data_ptr<S>();
    each_row<scalar_t>(
        rows.values, [&](std::int64_t t, const scalar_t* row) { out[t] = largest_of<scalar_t, S>(row, rows.classes); });
  });
}

void sums_loop(const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums) {
  DTENSOR_DISPATCH_ROWS([&] {
    using S = at::opmath_type<scalar_t>;
    sums_of<scalar_t>(rows, top.mutable_data_ptr<S>(), finds_top, sums.mutable_data_ptr<S>());
  });
}

void gradient_loop(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) {
  DTENSOR_DISPATCH_ROWS([&] {
    using S = at::opmath_type<scalar_t>;
    gradients_of<scalar_t>(rows, factors.const_data_ptr<S>(), out);
  });
}

}  // namespace dtensor::loss_rows
