// Loops on the CPU, in the order of sums of the CUDA kernels.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "internal/kernels/lanes.h"
#include "row_norm/kernels.h"
#include "row_norm/layer_norm_arithmetic.h"

namespace dtensor::row_norm {
namespace {

template <class T>
struct Rows {
  std::int64_t rows, n;
  const T* x;
  float *mean, *rstd;
  const float* weight;

  explicit Rows(const Saved& s)
      : rows(s.x.size(0)),
        n(s.x.size(1)),
        x(s.x.const_data_ptr<T>()),
        mean(s.mean.defined() ? s.mean.mutable_data_ptr<float>() : nullptr),
        rstd(s.rstd.mutable_data_ptr<float>()),
        weight(s.weight.defined() ? s.weight.const_data_ptr<float>() : nullptr) {}

  float mean_of(std::int64_t r) const { return mean != nullptr ? mean[r] : 0.0F; }
  float scale(std::int64_t c) const { return weight != nullptr ? weight[c] : 1.0F; }
  float xhat(std::int64_t r, std::int64_t c) const {
    return normalized(static_cast<float>(x[r * n + c]), mean_of(r), rstd[r]);
  }
};

template <class Value>
float sum_of(std::int64_t n, const Value& value) {
  return lanes::reduce_row<kWarps>(n, 0.0F, value, lanes::add<float>);
}

template <class Fn>
void each(std::int64_t count, std::int64_t elements, const Fn& fn) {
  constexpr std::int64_t kGrain = 1 << 14;  // minimum number of elements per thread
  at::parallel_for(0, count, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, elements)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) fn(i);
                   });
}

template <class T>
void write_normalized(const Rows<T>& s, const float* bias, float eps, T* y) {
  const auto count = static_cast<float>(s.n);
  each(s.rows, s.n, [&](std::int64_t r) {
    const T* row = s.x + r * s.n;
    const auto at = [&](std::int64_t c) { return static_cast<float>(row[c]); };
    if (s.mean != nullptr) s.mean[r] = quotient(sum_of(s.n, at), count);
    const float mean = s.mean_of(r);
    s.rstd[r] = reciprocal_deviation(sum_of(s.n, [&](std::int64_t c) { return square_of(at(c), mean); }), count, eps);
    for (std::int64_t c = 0; c < s.n; ++c) {
      y[r * s.n + c] = static_cast<T>(dist::mul_add(s.xhat(r, c), s.scale(c), bias != nullptr ? bias[c] : 0.0F));
    }
  });
}

template <class T>
void write_input_gradient(const Rows<T>& s, const T* grad, T* result) {
  const auto count = static_cast<float>(s.n);
  each(s.rows, s.n, [&](std::int64_t r) {
    const auto scaled = [&](std::int64_t c) {
      return dist::product(static_cast<float>(grad[r * s.n + c]), s.scale(c));
    };
    const auto along = [&](std::int64_t c) { return dist::product(scaled(c), s.xhat(r, c)); };
    const RowMeans means{s.mean != nullptr ? quotient(sum_of(s.n, scaled), count) : 0.0F,
                         quotient(sum_of(s.n, along), count)};
    for (std::int64_t c = 0; c < s.n; ++c) {
      result[r * s.n + c] = static_cast<T>(input_gradient(scaled(c), s.xhat(r, c), s.rstd[r], means));
    }
  });
}

template <class T>
void write_sums(const Rows<T>& s, const T* grad, std::int64_t chunks, float* partial, float* sums) {
  const auto plane = chunks * s.n;
  each(chunks, s.n * kRowsOfChunk, [&](std::int64_t chunk) {
    float *weight = partial + chunk * s.n, *bias = weight + plane;
    std::fill_n(weight, s.n, 0.0F), std::fill_n(bias, s.n, 0.0F);
    for (auto r = chunk * kRowsOfChunk; r < std::min(s.rows, (chunk + 1) * kRowsOfChunk); ++r) {
      for (std::int64_t c = 0; c < s.n; ++c) {
        const auto g = static_cast<float>(grad[r * s.n + c]);
        weight[c] = dist::mul_add(g, s.xhat(r, c), weight[c]);
        bias[c] += g;
      }
    }
  });
  std::fill_n(sums, 2 * s.n, 0.0F);
  for (std::int64_t which = 0; which < 2; ++which) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int64_t c = 0; c < s.n; ++c) sums[which * s.n + c] += partial[which * plane + chunk * s.n + c];
    }
  }
}

#define DTENSOR_DISPATCH_HALF(x, ...) AT_DISPATCH_REDUCED_FLOATING_TYPES((x).scalar_type(), "layer_norm", __VA_ARGS__)

Saved saved(const at::Tensor& x, const Optional& mean, const at::Tensor& rstd, const Optional& weight = {}) {
  return {x, mean.value_or(at::Tensor()), rstd, weight.value_or(at::Tensor())};
}

}  // namespace

Normalized norm_rows_loop(const at::Tensor& x, const Optional& weight, const Optional& bias, double eps, bool centers) {
  auto results = empty_normalized(x, centers);
  const auto& [y, mean, rstd] = results;
  if (x.numel() == 0) return results;
  DTENSOR_DISPATCH_HALF(x, [&, &y = y, &mean = mean, &rstd = rstd] {
    write_normalized(Rows<scalar_t>(saved(x, mean, rstd, weight)), bias ? bias->const_data_ptr<float>() : nullptr,
                     static_cast<float>(eps), y.mutable_data_ptr<scalar_t>());
  });
  return results;
}

at::Tensor input_gradient_loop(const at::Tensor& grad, const at::Tensor& x, const Optional& mean,
                               const at::Tensor& rstd, const Optional& weight) {
  auto result = at::empty_like(x);
  if (x.numel() == 0) return result;
  DTENSOR_DISPATCH_HALF(x, [&] {
    write_input_gradient(Rows<scalar_t>(saved(x, mean, rstd, weight)), grad.const_data_ptr<scalar_t>(),
                         result.mutable_data_ptr<scalar_t>());
  });
  return result;
}

Sums parameter_gradients_loop(const at::Tensor& grad, const at::Tensor& x, const Optional& mean,
                              const at::Tensor& rstd) {
  auto results = empty_sums(x);
  const auto& [sums, partial] = results;
  if (x.numel() == 0) return results;
  DTENSOR_DISPATCH_HALF(x, [&, &sums = sums, &partial = partial] {
    write_sums(Rows<scalar_t>(saved(x, mean, rstd)), grad.const_data_ptr<scalar_t>(), partial.size(1),
               partial.mutable_data_ptr<float>(), sums.mutable_data_ptr<float>());
  });
  return results;
}

}  // namespace dtensor::row_norm
