// Registers the CUDA kernels of layer norm when the library dtensor_cuda is loaded.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "internal/kernels/cuda_launch.h"
#include "row_norm/cuda/layer_norm.h"
#include "row_norm/kernels.h"

namespace dtensor::row_norm::cuda_kernels {
namespace {

const float* floats(const Optional& t) { return t && t->defined() ? t->const_data_ptr<float>() : nullptr; }

// Calls launch(rows, stream) for the current stream of the device.
template <class Launch>
void run(const at::Tensor& x, const Optional& mean, const at::Tensor& rstd, const Optional& weight,
         const Launch& launch) {
  const cuda::Rows rows{.type = kernel_type_of<lanes::Type>(x, "layer_norm", "rows"),
                        .rows = x.size(0),
                        .n = x.size(1),
                        .x = x.const_data_ptr(),
                        .mean = mean && mean->defined() ? mean->mutable_data_ptr<float>() : nullptr,
                        .rstd = rstd.mutable_data_ptr<float>(),
                        .weight = floats(weight)};
  if (x.numel() > 0) launch_on_device_of(x, "layer_norm", [&](auto stream) { return launch(rows, stream); });
}

Normalized norm_rows(const at::Tensor& x, const Optional& weight, const Optional& bias, double eps, bool centers) {
  auto results = empty_normalized(x, centers);
  const at::Tensor &y = std::get<0>(results), &mean = std::get<1>(results), &rstd = std::get<2>(results);
  run(x, mean, rstd, weight, [&](const auto& rows, auto stream) {
    return cuda::launch_forward(rows, floats(bias), static_cast<float>(eps), y.mutable_data_ptr(), stream);
  });
  return results;
}

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& x, const Optional& mean, const at::Tensor& rstd,
                          const Optional& weight) {
  auto result = at::empty_like(x);
  run(x, mean, rstd, weight, [&](const auto& rows, auto stream) {
    return cuda::launch_input_gradient(rows, grad.const_data_ptr(), result.mutable_data_ptr(), stream);
  });
  return result;
}

Sums parameter_gradients(const at::Tensor& grad, const at::Tensor& x, const Optional& mean, const at::Tensor& rstd) {
  auto results = empty_sums(x);
  const at::Tensor &sums = std::get<0>(results), &partial = std::get<1>(results);
  run(x, mean, rstd, {}, [&](const auto& rows, auto stream) {
    return cuda::launch_parameter_gradients(rows, grad.const_data_ptr(), partial.mutable_data_ptr<float>(),
                                            sums.mutable_data_ptr<float>(), stream);
  });
  return results;
}

TORCH_LIBRARY_IMPL(dtensor, CUDA, m) {
  m.impl("norm_rows", norm_rows);
  m.impl("norm_rows_input_gradient", input_gradient);
  m.impl("norm_rows_parameter_gradients", parameter_gradients);
}

}  // namespace
}  // namespace dtensor::row_norm::cuda_kernels
