// Kernels by device, and memory for their results.
#include "row_norm/kernels.h"

#include <ATen/ATen.h>

#include <array>

#include "internal/simulated.h"
#include "row_norm/arithmetic.h"

namespace dtensor::row_norm {
namespace {

constexpr Kernels kSimulated{[](const Saved& saved, const at::Tensor&, double, const at::Tensor& y) {
                               if (saved.mean.defined()) forget_values(saved.mean);
                               forget_values(saved.rstd), forget_values(y);
                             },
                             [](const Saved&, const at::Tensor&, const at::Tensor& result) { forget_values(result); },
                             [](const Saved&, const at::Tensor&, const at::Tensor& partial, const at::Tensor& sums) {
                               forget_values(partial), forget_values(sums);
                             }};

// Written while libraries are loaded, read-only afterwards.
std::array<Kernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& registered_kernels() {
  static std::array<Kernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES> kernels;
  return kernels;
}

}  // namespace

void register_kernels(c10::DeviceType device, const Kernels& kernels) {
  registered_kernels()[static_cast<std::size_t>(device)] = kernels;
}

const Kernels* kernels_of(const at::Tensor& x) {
  if (is_simulated(x)) return &kSimulated;
  if (x.is_cpu()) return &cpu_loops();
  const auto& registered = registered_kernels()[static_cast<std::size_t>(x.device().type())];
  return registered.forward != nullptr ? &registered : nullptr;
}

at::Tensor forward(const Kernels& kernels, const Saved& saved, const at::Tensor& bias, double eps) {
  auto y = at::empty_like(saved.x);
  if (y.numel() > 0) kernels.forward(saved, bias, eps, y);
  return y;
}

at::Tensor input_gradient(const Kernels& kernels, const Saved& saved, const at::Tensor& grad) {
  auto result = at::empty_like(saved.x);
  if (result.numel() > 0) kernels.input_gradient(saved, grad, result);
  return result;
}

at::Tensor parameter_gradients(const Kernels& kernels, const Saved& saved, const at::Tensor& grad) {
  const auto options = saved.x.options().dtype(at::kFloat);
  const auto rows = saved.x.size(0), n = saved.x.size(1);
  if (rows == 0 || n == 0) return at::zeros({2, n}, options);
  auto sums = at::empty({2, n}, options);
  kernels.parameter_gradients(saved, grad, at::empty({2, (rows + kRowsOfChunk - 1) / kRowsOfChunk, n}, options), sums);
  return sums;
}

}  // namespace dtensor::row_norm
