// The loops over small tensors, and ATen's list norm for large ones.
#include "optim/sums.h"

#include <ATen/ATen.h>

#include <cmath>

#pragma GCC optimize("O3")  // the sums over lanes become vector instructions

namespace dtensor::optim {
namespace {

constexpr std::int64_t kSmall = 1 << 14;  // elements; beyond, ATen's vectorised and threaded kernels win

bool is_half(const at::Tensor& t) { return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16; }

double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

template <class T, class Term>
double sum(const T* x, std::int64_t n, Term term) {
  constexpr std::int64_t kLanes = 8;  // independent sums, so that additions need not wait for each other
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
double powers(const T* x, std::int64_t n, double p) {
  if (std::isinf(p)) {
    double most = 0;
    for (std::int64_t i = 0; i < n; ++i) most = larger(most, std::abs(static_cast<double>(x[i])));
    return most;
  }
  if (p == 2) return sum(x, n, [](double v) { return v * v; });
  if (p == 1) return sum(x, n, [](double v) { return std::abs(v); });
  return sum(x, n, [p](double v) { return std::pow(std::abs(v), p); });
}

// False where the loops do not serve.
bool small_powers(const at::Tensor& t, double p, double& result) {
  if (!t.is_cpu() || t.numel() > kSmall || !t.is_non_overlapping_and_dense()) return false;
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

}  // namespace

void PowerSum::add(const at::Tensor& local) {
  if (local.numel() == 0) return;
  double part = 0;
  if (!small_powers(local, p_, part)) return (is_half(local) ? halves_ : others_).push_back(local);
  small_ = std::isinf(p_) ? larger(small_, part) : small_ + part;
}

void PowerSum::append(const std::vector<at::Tensor>& locals, std::optional<at::ScalarType> dtype,
                      std::vector<at::Tensor>& norms) const {
  if (locals.empty()) return;
  auto found = at::_foreach_norm(locals, p_, dtype);
  norms.insert(norms.end(), found.begin(), found.end());
}

at::Tensor PowerSum::value(c10::Device device) const {
  const auto options = at::TensorOptions(at::kDouble).device(device);
  std::vector<at::Tensor> norms;
  append(halves_, at::kFloat, norms);
  append(others_, std::nullopt, norms);
  const at::Tensor small = at::scalar_tensor(small_, options);
  if (norms.empty()) return small;
  for (at::Tensor& norm : norms) norm = norm.to(options);
  const at::Tensor all = at::stack(norms);
  return std::isinf(p_) ? at::maximum(small, all.amax()) : small + all.pow(p_).sum();
}

}  // namespace dtensor::optim
