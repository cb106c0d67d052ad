// Registers the CUDA kernels of cross entropy when the library dtensor_cuda is loaded.
#include "internal/kernels/cuda_launch.h"
#include "internal/kernels/gpu_kernels.h"
#include "parallel/cuda/loss_rows.h"
#include "parallel/loss/row_kernels.h"

namespace dtensor::loss_rows::gpu {
namespace {

cuda::Rows pointers(const Rows& rows) {
  return {.type = kernel_type_of<lanes::Type>(rows.values, "cross_entropy", "logits"),
          .values = rows.values.const_data_ptr(),
          .tokens = rows.values.size(0),
          .stride = rows.values.stride(0),
          .classes = rows.classes,
          .targets = rows.targets.const_data_ptr<std::int64_t>(),
          .weight = rows.weight.defined() ? rows.weight.const_data_ptr() : nullptr,
          .first = rows.first,
          .count = rows.count,
          .ignore_index = rows.ignore_index,
          .smooths = rows.smooths};
}

// Runs `launch` on the current stream of the device.
template <class Launch>
void run(const Rows& rows, const Launch& launch) {
  launch_on_device_of(rows.values, "cross_entropy", [&](auto stream) { return launch(pointers(rows), stream); });
}

bool is_disabled() { return !takes_gpu_kernel(GpuKernel::loss, c10::DeviceType::CUDA); }

void largest(const Rows& rows, const at::Tensor& top) {
  if (is_disabled()) return largest_of_aten(rows, top);
  run(rows, [&](const auto& r, auto stream) { return cuda::launch_largest(r, top.mutable_data_ptr(), stream); });
}

void sums(const Rows& rows, const at::Tensor& top, bool finds_top, const at::Tensor& sums) {
  if (is_disabled()) return sums_of_aten(rows, top, finds_top, sums);
  run(rows, [&](const auto& r, auto stream) {
    return cuda::launch_sums(r, top.mutable_data_ptr(), finds_top, sums.mutable_data_ptr(), stream);
  });
}

void gradient(const Rows& rows, const at::Tensor& factors, const at::Tensor& out) {
  if (is_disabled()) return gradient_of_aten(rows, factors, out);
  run(rows, [&](const auto& r, auto stream) {
    return cuda::launch_gradient(r, factors.const_data_ptr(), out.mutable_data_ptr(), out.stride(0), out.size(1),
                                 stream);
  });
}

TORCH_LIBRARY_IMPL(dtensor, CUDA, m) { register_kernels<largest, sums, gradient>(m); }

}  // namespace
}  // namespace dtensor::loss_rows::gpu
