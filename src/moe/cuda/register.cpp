// Registers the CUDA kernels for row permutations when the library dtensor_cuda is loaded.
#include "internal/kernels/cuda_launch.h"
#include "moe/cuda/rows.h"
#include "moe/row_kernels.h"

namespace dtensor::moe {
namespace {

cuda::Type type_of(const at::Tensor& t) { return kernel_type_of<cuda::Type>(t, "mixture of experts", "rows"); }

cuda::Extent extent(const at::Tensor& position, const at::Tensor& rows) {
  return {position.size(0), position.size(1), rows.size(1)};
}

const std::int64_t* longs(const at::Tensor& t) { return t.const_data_ptr<std::int64_t>(); }

void permute(const at::Tensor& x, const at::Tensor& position, const at::Tensor& out) {
  if (position.numel() == 0) return;
  launch_on_device_of(x, "permute_tokens", [&](auto stream) {
    return cuda::launch_permute(extent(position, x), x.const_data_ptr(), longs(position), out.mutable_data_ptr(),
                                x.size(1) * static_cast<std::int64_t>(x.element_size()), stream);
  });
}

void unpermute(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight, const at::Tensor& out,
               bool adds) {
  if (out.numel() == 0) return;
  launch_on_device_of(rows, "unpermute_tokens", [&](auto stream) {
    return cuda::launch_unpermute(extent(position, rows), type_of(rows), rows.const_data_ptr(), longs(position),
                                  weight.defined() ? weight.const_data_ptr() : nullptr, out.mutable_data_ptr(), adds,
                                  stream);
  });
}

void unpermute_backward(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& position,
                        const at::Tensor& weight, const at::Tensor& d_rows, const at::Tensor& d_weight) {
  if (position.numel() == 0) return;
  launch_on_device_of(rows, "unpermute_tokens backward", [&](auto stream) {
    return cuda::launch_unpermute_backward(extent(position, rows), type_of(rows), grad.const_data_ptr(),
                                           rows.const_data_ptr(), longs(position), weight.const_data_ptr(),
                                           d_rows.mutable_data_ptr(), d_weight.mutable_data_ptr(), stream);
  });
}

void count(const at::Tensor& ids, const at::Tensor& counts) {
  if (ids.numel() == 0) return;
  launch_on_device_of(ids, "count_bins", [&](auto stream) {
    return cuda::launch_count(longs(ids), ids.numel(), counts.size(0), counts.mutable_data_ptr<std::int64_t>(), stream);
  });
}

// LibTorch has the kernel for these compute capabilities.
bool multiplies_groups_on(c10::Device device) {
  int major = 0;
  const auto code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
  return code == cudaSuccess && (major == 9 || major == 10);
}

const bool registered =
    (register_row_kernels(c10::DeviceType::CUDA, {permute, unpermute, unpermute_backward, count, multiplies_groups_on}),
     true);

}  // namespace
}  // namespace dtensor::moe
