// Fourier transforms of several dimensions, of which some are sharded: the unsharded ones first, then each sharded one.
// Before each of these the operator kernel moves the shard to another dimension, by an all-to-all. One call for all
// dimensions would gather a tensor without another dimension to shard.
#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

#include "autograd/conversion_nodes.h"
#include "internal/bit_identical.h"
#include "ops/dispatch/boxed_kernel.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using torch::jit::Stack;
using Dims = std::vector<std::int64_t>;

bool is_sharded(const TensorSpec& spec, std::int64_t dim) {
  for (std::size_t a = 0; a < spec.placements.size(); ++a) {
    if (has_axis(spec.mesh->nontrivial_axes, a) && spec.placements[a].is_shard() && spec.placements[a].dim() == dim)
      return true;
  }
  return false;
}

at::Tensor complex_transform(at::Tensor x, const Dims& dims, std::int64_t normalization, bool forward) {
  Dims unsharded, sharded;
  for (const auto dim : dims) (is_sharded(*dtensor_or_null(x)->spec(), dim) ? sharded : unsharded).push_back(dim);
  if (!unsharded.empty()) x = at::_fft_c2c(x, unsharded, normalization, forward);
  for (const auto dim : sharded) x = at::_fft_c2c(x, {dim}, normalization, forward);
  return x;
}

// The result of a real transform, with shards of its last dimension moved to `other`. ATen's derivatives write to
// slices of the last dimension, which would gather it.
at::Tensor with_unsharded_last(const at::Tensor& x, std::int64_t last, std::int64_t other) {
  const TensorSpec& spec = *dtensor_or_null(x)->spec();
  if (!is_sharded(spec, last)) return x;
  Placements placements = spec.placements;
  for (auto& p : placements) {
    if (p.is_shard() && p.dim() == last) p = Shard(other);
  }
  return redistribute_tensors({x}, {placements})[0];
}

}  // namespace

void fourier_special(const OpEntry& entry, Stack& stack) {
  refuse_if_bit_identical(entry.text().c_str());
  const std::size_t count = entry.args.size();
  const at::Tensor self = torch::jit::peek(stack, 0, count).toTensor();
  const auto* impl = dtensor_or_null(self);
  Dims dims = torch::jit::peek(stack, 1, count).toIntVector();
  const auto sharded = [&](std::int64_t dim) {
    return dim >= -self.dim() && dim < self.dim() && is_sharded(*impl->spec(), c10::maybe_wrap_dim(dim, self.dim()));
  };
  if (impl == nullptr || dims.size() < 2 || std::none_of(dims.begin(), dims.end(), sharded)) {
    return run_cached_or_compile(entry, stack);
  }
  for (auto& dim : dims) dim = c10::maybe_wrap_dim(dim, self.dim());
  const auto normalization = torch::jit::peek(stack, 2, count).toInt();
  const auto last = torch::jit::pop(stack);
  torch::jit::drop(stack, count - 1);
  if (entry.schema().argumentIndexWithName("forward")) {
    return stack.emplace_back(complex_transform(self, dims, normalization, last.toBool())), void();
  }
  const Dims others(dims.begin(), dims.end() - 1);
  if (entry.schema().argumentIndexWithName("onesided")) {
    const auto x = at::_fft_r2c(self, {dims.back()}, normalization, last.toBool());
    const auto y = complex_transform(x, others, normalization, /*forward=*/true);
    return stack.emplace_back(with_unsharded_last(y, dims.back(), others[0])), void();
  }
  const auto x = complex_transform(self, others, normalization, /*forward=*/false);
  stack.emplace_back(at::_fft_c2r(x, {dims.back()}, normalization, last.toInt()));
}

}  // namespace dtensor
