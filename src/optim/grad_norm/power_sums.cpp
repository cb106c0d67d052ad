// Loops for small tensors, and ATen's foreach norm for large ones.
#include "optim/grad_norm/power_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "internal/local_norms.h"
#include "internal/simulated.h"

#pragma GCC optimize("O3")  // vectorizes the sums over lanes

namespace dtensor::optim {
namespace {

constexpr std::int64_t kSmallNumel = 1 << 14;  // elements; above, ATen's vectorized and threaded kernels are faster

template <class T, class Term>
[[gnu::always_inline]] inline double sum(const T* x, std::int64_t n, Term term) {
  constexpr std::int64_t kLanes = 16;  // independent sums, so that additions do not depend on each other
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t k = 0; k < kLanes; ++k) lanes[k] += term(static_cast<double>(x[i + k]));
  }
  double total = 0;
  for (; i < n; ++i) total += term(static_cast<double>(x[i]));
  for (const double lane : lanes) total += lane;
  return total;
}

template <class T>
[[gnu::always_inline]] inline double squares_of(const T* x, std::int64_t n) {
  return sum(
      x, n, [](double v) __attribute__((always_inline)) { return v * v; });
}

template <class T>
double squares(const T* x, std::int64_t n) {
  return squares_of(x, n);
}

// Same code with wider registers. No fused multiply-add, so the same bits.
#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] double squares_avx2(const T* x, std::int64_t n) {
  return squares_of(x, n);
}
const bool wide = __builtin_cpu_supports("avx2") != 0;
#else
template <class T>
double squares_avx2(const T* x, std::int64_t n) {
  return squares_of(x, n);
}
constexpr bool wide = false;
#endif

template <class T>
double powers(const T* x, std::int64_t n, double p) {
  if (std::isinf(p)) {
    double most = 0;
    for (std::int64_t i = 0; i < n; ++i) most = max_propagate_nan(most, std::abs(static_cast<double>(x[i])));
    return most;
  }
  if (p == 2) return wide ? squares_avx2(x, n) : squares(x, n);
  if (p == 1) return sum(x, n, [](double v) { return std::abs(v); });
  return sum(x, n, [p](double v) { return std::pow(std::abs(v), p); });
}

// Returns false if the loops do not support the tensor.
bool small_powers(const at::Tensor& t, double p, double& result) {
  if (!t.is_cpu() || t.numel() > kSmallNumel || !t.is_non_overlapping_and_dense() || is_simulated(t)) return false;
  switch (t.scalar_type()) {
    case at::kFloat:
      result = powers(t.const_data_ptr<float>(), t.numel(), p);
      return true;
    case at::kDouble:
      result = powers(t.const_data_ptr<double>(), t.numel(), p);
      return true;
    case at::kBFloat16:
      result = powers(t.const_data_ptr<at::BFloat16>(), t.numel(), p);
      return true;
    case at::kHalf:
      result = powers(t.const_data_ptr<at::Half>(), t.numel(), p);
      return true;
    default:
      return false;
  }
}

// Whether powers overflow in float for this norm, or underflow although they would count.
bool needs_double(const at::Tensor& local, double norm, double p) {
  constexpr double kSmallest = std::numeric_limits<float>::min() / std::numeric_limits<float>::epsilon();
  if (!std::isfinite(norm)) return true;
  if (std::pow(norm, p) > static_cast<double>(local.numel()) * kSmallest) return false;
  return norm > 0 || at::linalg_vector_norm(local, std::numeric_limits<double>::infinity()).item<double>() > 0;
}

// ATen accumulates in float unless the dtype is double. If float is not enough for the powers, computes the norm again
// in double, as the loops do. Only for tensors in host memory.
at::Tensor wide_norm(const at::Tensor& local, const at::Tensor& norm, double p) {
  if (!norm.is_cpu() || std::isinf(p) || norm.scalar_type() == at::kDouble || is_simulated(norm)) return norm;
  if (!needs_double(local, norm.item<double>(), p)) return norm;
  const auto wide = local.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::linalg_vector_norm(local, p, c10::nullopt, /*keepdim=*/false, wide);
}

// Zero where there is no norm. Converts all norms at once.
at::Tensor powers_of(std::vector<at::Tensor> norms, double p) {
  const auto is_defined = [](const at::Tensor& t) { return t.defined(); };
  const at::Tensor zero = at::zeros_like(*std::find_if(norms.begin(), norms.end(), is_defined));
  std::replace_if(norms.begin(), norms.end(), std::not_fn(is_defined), zero);
  const at::Tensor all = at::stack(norms).to(at::kDouble);
  return std::isinf(p) ? all : all.pow(p);
}

}  // namespace

at::Tensor power_sums(const std::vector<at::Tensor>& locals, double p, c10::Device device) {
  const auto count = static_cast<std::int64_t>(locals.size());
  at::Tensor small = at::zeros({count}, at::kDouble);
  auto* values = is_simulated(small) ? nullptr : small.mutable_data_ptr<double>();
  std::vector<at::Tensor> large(locals.size());
  bool any_small = device.is_cpu(), any_large = false;
  for (std::size_t i = 0; i < locals.size(); ++i) {
    const at::Tensor& local = locals[i];
    if (!local.defined() || local.numel() == 0) continue;
    const bool is_small = values != nullptr && small_powers(local, p, values[i]);
    if (!is_small) large[i] = local;
    (is_small ? any_small : any_large) = true;
  }
  // A copy of zeros to a device would make the host wait.
  const at::Tensor sums =
      any_small ? small.to(device) : at::zeros({count}, at::TensorOptions(device).dtype(at::kDouble));
  if (!any_large) return sums;
  auto norms = local_norms(large, p);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (norms[i].defined()) norms[i] = wide_norm(large[i], norms[i], p).to(device);
  }
  return sums + powers_of(std::move(norms), p);
}

}  // namespace dtensor::optim
