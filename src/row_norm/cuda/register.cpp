// Registers the CUDA kernels of layer norm when the library dtensor_cuda is loaded.
#include "internal/kernels/cuda_launch.h"
#include "row_norm/cuda/layer_norm.h"
#include "row_norm/kernels.h"

namespace dtensor::row_norm {
namespace {

const float* floats(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

// Calls launch(rows, stream) for the current stream of the device.
template <class Launch>
void run(const Saved& saved, const Launch& launch) {
  const cuda::Rows rows{.type = kernel_type_of<lanes::Type>(saved.x, "layer_norm", "rows"),
                        .rows = saved.x.size(0),
                        .n = saved.x.size(1),
                        .x = saved.x.const_data_ptr(),
                        .mean = saved.mean.defined() ? saved.mean.mutable_data_ptr<float>() : nullptr,
                        .rstd = saved.rstd.mutable_data_ptr<float>(),
                        .weight = floats(saved.weight)};
  launch_on_device_of(saved.x, "layer_norm", [&](auto stream) { return launch(rows, stream); });
}

constexpr Kernels kKernels{
    [](const Saved& saved, const at::Tensor& bias, double eps, const at::Tensor& y) {
      run(saved, [&](const auto& rows, auto stream) {
        return cuda::launch_forward(rows, floats(bias), static_cast<float>(eps), y.mutable_data_ptr(), stream);
      });
    },
    [](const Saved& saved, const at::Tensor& grad, const at::Tensor& result) {
      run(saved, [&](const auto& rows, auto stream) {
        return cuda::launch_input_gradient(rows, grad.const_data_ptr(), result.mutable_data_ptr(), stream);
      });
    },
    [](const Saved& saved, const at::Tensor& grad, const at::Tensor& partial, const at::Tensor& sums) {
      run(saved, [&](const auto& rows, auto stream) {
        return cuda::launch_parameter_gradients(rows, grad.const_data_ptr(), partial.mutable_data_ptr<float>(),
                                                sums.mutable_data_ptr<float>(), stream);
      });
    }};

const bool registered = (register_kernels(c10::DeviceType::CUDA, kKernels), true);

}  // namespace
}  // namespace dtensor::row_norm
