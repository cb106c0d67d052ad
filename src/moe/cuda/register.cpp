// Registers the CUDA kernels for row permutations when the library dtensor_cuda is loaded.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "internal/kernels/cuda_launch.h"
#include "moe/cuda/rows.h"

namespace dtensor::moe {
namespace {

using Optional = std::optional<at::Tensor>;

cuda::Type type_of(const at::Tensor& t) { return kernel_type_of<cuda::Type>(t, "mixture of experts", "rows"); }

cuda::Extent extent(const at::Tensor& position, const at::Tensor& rows) {
  return {position.size(0), position.size(1), rows.size(1)};
}

const std::int64_t* longs(const at::Tensor& t) { return t.const_data_ptr<std::int64_t>(); }

at::Tensor permute(const at::Tensor& x, const at::Tensor& position, std::int64_t kept) {
  auto result = at::zeros({kept, x.size(1)}, x.options());
  if (position.numel() == 0) return result;
  launch_on_device_of(x, "permute_tokens", [&](auto stream) {
    return cuda::launch_permute(extent(position, x), x.const_data_ptr(), longs(position), result.mutable_data_ptr(),
                                x.size(1) * static_cast<std::int64_t>(x.element_size()), stream);
  });
  return result;
}

void write_unpermuted(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& position, const Optional& weight,
                      bool adds) {
  if (out.numel() == 0) return;
  launch_on_device_of(rows, "unpermute_tokens", [&](auto stream) {
    return cuda::launch_unpermute(extent(position, rows), type_of(rows), rows.const_data_ptr(), longs(position),
                                  weight ? weight->const_data_ptr() : nullptr, out.mutable_data_ptr(), adds, stream);
  });
}

at::Tensor unpermute(const at::Tensor& rows, const at::Tensor& position, const Optional& weight) {
  auto result = at::empty({position.size(0), rows.size(1)}, rows.options());
  write_unpermuted(result, rows, position, weight, /*adds=*/false);
  return result;
}

at::Tensor& add_unpermuted(at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                           const Optional& weight) {
  write_unpermuted(base, rows, position, weight, /*adds=*/true);
  return base;
}

std::tuple<at::Tensor, at::Tensor> unpermute_backward(const at::Tensor& grad, const at::Tensor& rows,
                                                      const at::Tensor& position, const at::Tensor& weight) {
  auto d_rows = at::zeros(rows.sizes(), rows.options()), d_weight = at::empty_like(weight);
  if (position.numel() == 0) return {d_rows, d_weight};
  launch_on_device_of(rows, "unpermute_tokens backward", [&](auto stream) {
    return cuda::launch_unpermute_backward(extent(position, rows), type_of(rows), grad.const_data_ptr(),
                                           rows.const_data_ptr(), longs(position), weight.const_data_ptr(),
                                           d_rows.mutable_data_ptr(), d_weight.mutable_data_ptr(), stream);
  });
  return {d_rows, d_weight};
}

at::Tensor count(const at::Tensor& ids, std::int64_t bins) {
  auto counts = at::zeros({bins}, ids.options());
  if (ids.numel() == 0) return counts;
  launch_on_device_of(ids, "count_bins", [&](auto stream) {
    return cuda::launch_count(longs(ids), ids.numel(), bins, counts.mutable_data_ptr<std::int64_t>(), stream);
  });
  return counts;
}

// LibTorch has the kernel for these compute capabilities.
bool has_grouped_mm(const at::Tensor& x) {
  int major = 0;
  const auto code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.device().index());
  return code == cudaSuccess && (major == 9 || major == 10);
}

TORCH_LIBRARY_IMPL(dtensor, CUDA, m) {
  m.impl("permute_rows", permute);
  m.impl("unpermute_rows", unpermute);
  m.impl("add_unpermuted_rows_", add_unpermuted);
  m.impl("unpermute_rows_backward", unpermute_backward);
  m.impl("count_bins", count);
  m.impl("has_grouped_mm", has_grouped_mm);
}

}  // namespace
}  // namespace dtensor::moe
