// Registers the CUDA kernels of random fills when the library dtensor_cuda is loaded, and converts regions for them.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "internal/contiguous_ranges.h"
#include "random/cuda/fill_kernel.h"
#include "random/fill.h"

namespace dtensor {
namespace {

std::optional<cuda::Type> type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return cuda::Type::f32;
    case at::kDouble:
      return cuda::Type::f64;
    case at::kHalf:
      return cuda::Type::f16;
    case at::kBFloat16:
      return cuda::Type::bf16;
    case at::kByte:
      return cuda::Type::u8;
    case at::kChar:
      return cuda::Type::i8;
    case at::kShort:
      return cuda::Type::i16;
    case at::kInt:
      return cuda::Type::i32;
    case at::kLong:
      return cuda::Type::i64;
    case at::kBool:
      return cuda::Type::boolean;
    default:
      return std::nullopt;
  }
}

std::optional<cuda::FillLayout> layout_of(const at::Tensor& local, const GlobalRegion& region) {
  cuda::FillLayout layout;
  layout.ndim = static_cast<int>(region.sizes.size());
  if (layout.ndim > cuda::FillLayout::kMaxDims) return std::nullopt;
  std::int64_t stride = 1;
  for (int d = layout.ndim - 1; d >= 0; --d) {
    const auto& segments = region.segments[static_cast<std::size_t>(d)];
    if (segments.size() > cuda::FillLayout::kMaxSegments) return std::nullopt;
    layout.local_sizes[d] = local.size(d);
    layout.strides[d] = stride;
    stride *= region.sizes[static_cast<std::size_t>(d)];
    layout.segments[d] = static_cast<int>(segments.size());
    for (std::size_t s = 0; s < segments.size(); ++s) {
      layout.offsets[d][s] = segments[s].offset;
      layout.lengths[d][s] = segments[s].length;
    }
  }
  const auto run = ContiguousRanges(region.sizes, region.segments).at(0);
  layout.is_one_range = run.length == local.numel();
  layout.first = static_cast<std::uint64_t>(run.global);
  return layout;
}

bool fill_cuda(const at::Tensor& local, const GlobalRegion& region, RandomKey key, const Distribution& distribution) {
  const auto type = type_of(local.scalar_type());
  const auto layout = layout_of(local, region);
  if (!type || !layout) return false;
  const c10::cuda::CUDAGuard guard(local.device());
  const auto stream = c10::cuda::getCurrentCUDAStream(local.device().index());
  const auto* error =
      cuda::launch_fill(local.mutable_data_ptr(), *type, local.numel(), *layout, key, distribution, stream.stream());
  TORCH_CHECK(error == nullptr, "random fill of ", local.sizes(), " on ", local.device(), ": ", error);
  return true;
}

const bool registered = (register_fill_kernel(c10::DeviceType::CUDA, fill_cuda), true);

}  // namespace
}  // namespace dtensor
