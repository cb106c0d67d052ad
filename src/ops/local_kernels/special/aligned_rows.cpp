// Padding of matrices for fast products, and linear layers that use it.
#include "internal/kernels/aligned_rows.h"

#include <ATen/ATen.h>

#include "internal/kernels/gpu_kernels.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

constexpr std::int64_t kElements = 64, kBytes = 16;

}  // namespace

std::int64_t aligned_width(std::int64_t width, at::ScalarType dtype, c10::DeviceType device) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  if (size != 2 || width * size % kBytes == 0 || !takes_gpu_kernel(GpuKernel::aligned_rows, device)) return width;
  return (width + kElements - 1) / kElements * kElements;
}

at::Tensor with_aligned_rows(const at::Tensor& matrix) {
  const auto rows = matrix.size(0), wanted = aligned_width(rows, matrix.scalar_type(), matrix.device().type());
  return wanted == rows ? matrix : at::constant_pad_nd(matrix, {0, 0, 0, wanted - rows});
}

namespace {

// aten::linear with a product of aligned rows. The result is contiguous, as its DTensor says.
void linear_aligned(LocalCall& call) {
  const LocalArgs args(call);
  const auto x = args.tensor("input"), weight = args.tensor("weight"), bias = args.tensor("bias");
  const auto matrix = with_aligned_rows(weight);
  const auto more = matrix.size(0) - weight.size(0);
  const auto ends = bias.defined() && more > 0 ? at::constant_pad_nd(bias, {0, more}) : bias;
  const auto y = at::linear(x, matrix, ends.defined() ? std::optional(ends) : std::nullopt);
  set_results(call, {more > 0 ? y.narrow(-1, 0, weight.size(0)).contiguous() : y});
}

}  // namespace

void add_aligned_row_kernels(LocalKernels& kernels) { kernels.emplace("linear_aligned", linear_aligned); }

}  // namespace dtensor
