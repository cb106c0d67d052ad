// Registers the CUDA kernels for row permutations when the library dtensor_cuda is loaded.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "moe/cuda/rows.h"
#include "moe/row_kernels.h"

namespace dtensor::moe {
namespace {

cuda::Type type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return cuda::Type::f32;
    case at::kDouble:
      return cuda::Type::f64;
    case at::kHalf:
      return cuda::Type::f16;
    case at::kBFloat16:
      return cuda::Type::bf16;
    default:
      TORCH_CHECK(false, "mixture of experts: expected float32, float64, float16 or bfloat16 rows, got ",
                  t.scalar_type());
  }
}

cuda::Extent extent(const at::Tensor& position, const at::Tensor& rows) {
  return {position.size(0), position.size(1), rows.size(1)};
}

// Runs `launch` on the current stream of the tensor's device.
template <class Launch>
void run(const char* what, const at::Tensor& on, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(on.device());
  const auto* error = launch(c10::cuda::getCurrentCUDAStream(on.device().index()).stream());
  TORCH_CHECK(error == nullptr, what, " on ", on.device(), ": ", error);
}

const std::int64_t* longs(const at::Tensor& t) { return t.const_data_ptr<std::int64_t>(); }

void permute(const at::Tensor& x, const at::Tensor& position, const at::Tensor& out) {
  if (position.numel() == 0) return;
  run("permute_tokens", x, [&](auto stream) {
    return cuda::launch_permute(extent(position, x), x.const_data_ptr(), longs(position), out.mutable_data_ptr(),
                                x.size(1) * static_cast<std::int64_t>(x.element_size()), stream);
  });
}

void unpermute(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight, const at::Tensor& out,
               bool adds) {
  if (out.numel() == 0) return;
  run("unpermute_tokens", rows, [&](auto stream) {
    return cuda::launch_unpermute(extent(position, rows), type_of(rows), rows.const_data_ptr(), longs(position),
                                  weight.defined() ? weight.const_data_ptr() : nullptr, out.mutable_data_ptr(), adds,
                                  stream);
  });
}

void unpermute_backward(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& position,
                        const at::Tensor& weight, const at::Tensor& d_rows, const at::Tensor& d_weight) {
  if (position.numel() == 0) return;
  run("unpermute_tokens backward", rows, [&](auto stream) {
    return cuda::launch_unpermute_backward(extent(position, rows), type_of(rows), grad.const_data_ptr(),
                                           rows.const_data_ptr(), longs(position), weight.const_data_ptr(),
                                           d_rows.mutable_data_ptr(), d_weight.mutable_data_ptr(), stream);
  });
}

void count(const at::Tensor& ids, const at::Tensor& counts) {
  if (ids.numel() == 0) return;
  run("count_bins", ids, [&](auto stream) {
    return cuda::launch_count(longs(ids), ids.numel(), counts.size(0), counts.mutable_data_ptr<std::int64_t>(), stream);
  });
}

const bool registered =
    (register_row_kernels(c10::DeviceType::CUDA, {permute, unpermute, unpermute_backward, count}), true);

}  // namespace
}  // namespace dtensor::moe
