// Registers the CUDA kernels of layer norm when the library dtensor_cuda is loaded.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "row_norm/cuda/layer_norm.h"
#include "row_norm/kernels.h"

namespace dtensor::row_norm {
namespace {

const float* floats(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

// Calls launch(rows, stream) for the current stream of the device.
template <class Launch>
void run(const Saved& saved, const Launch& launch) {
  const auto device = saved.x.device();
  const cuda::Rows rows{.type = saved.x.scalar_type() == at::kHalf ? cuda::Type::f16 : cuda::Type::bf16,
                        .rows = saved.x.size(0),
                        .n = saved.x.size(1),
                        .x = saved.x.const_data_ptr(),
                        .mean = saved.mean.mutable_data_ptr<float>(),
                        .rstd = saved.rstd.mutable_data_ptr<float>(),
                        .weight = floats(saved.weight)};
  const c10::cuda::CUDAGuard guard(device);
  const auto* error = launch(rows, c10::cuda::getCurrentCUDAStream(device.index()).stream());
  TORCH_CHECK(error == nullptr, "layer_norm on ", device, ": ", error);
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
