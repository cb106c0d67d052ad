// Reductions that return positions: argmax, argmin and max/min along a dimension that is split. Every rank offers its
// best value with its global index; of equal values the smallest index wins and NaN beats all, as on one device. An
// empty shard offers an index that never wins.
#include "ops/handlers/local_args.h"

#include <limits>

namespace dtensor {
namespace {

constexpr std::int64_t kNoIndex = std::numeric_limits<std::int64_t>::max();

struct Best {
  at::Tensor value, index;
};

bool is_largest(const LocalCall& call) { return base_name(call).find("max") != std::string_view::npos; }

Best best_along(const at::Tensor& x, std::int64_t dim, bool keepdim, bool largest) {
  if (x.dim() > 0 && x.size(dim) == 0) {
    auto index = at::sum(x, dim, keepdim, at::kLong).fill_(kNoIndex);
    const auto identity = reduce_identity(x.scalar_type(), largest ? ReduceOp::max : ReduceOp::min);
    return {at::full_like(index, identity, x.options()), index};
  }
  auto [value, index] = largest ? at::max(x, dim, keepdim) : at::min(x, dim, keepdim);
  return {value, index};
}

// Row-major index into the local part -> row-major index into the whole.
at::Tensor globalize_flat(const at::Tensor& flat, const TensorSpec& spec, at::IntArrayRef local_sizes) {
  auto rest = flat, global = at::zeros_like(flat);
  std::int64_t stride = 1;
  for (std::int64_t d = spec.dim() - 1; d >= 0; --d) {
    const auto here = rest.remainder(local_sizes[d]);
    global = global + to_global(here, own_segments(&spec, d, spec.sizes[d])) * stride;
    rest = rest.floor_divide(local_sizes[d]);
    stride *= spec.sizes[d];
  }
  return global;
}

Best best_of_part(const LocalArgs& args, bool largest) {
  const auto self = args.tensor("self");
  const auto* spec = args.spec("self");
  const bool keepdim = args.flag("keepdim");
  if (!args.value("dim").isNone()) {
    auto best = best_along(self, args.dim(), keepdim, largest);
    const auto segments = own_segments(spec, args.dim(), args.global_sizes("self")[args.dim()]);
    if (total_length(segments) > 0) best.index = to_global(best.index, segments);
    return best;
  }
  auto best = best_along(self.reshape({-1}), 0, false, largest);
  if (spec != nullptr && self.numel() > 0) best.index = globalize_flat(best.index, *spec, self.sizes());
  const std::vector<std::int64_t> shape(keepdim ? self.dim() : 0, 1);
  return {best.value.reshape(shape), best.index.reshape(shape)};
}

at::Tensor gather(const Communicator& comm, const at::Tensor& own) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), comm.size());
  auto all = at::empty(sizes, own.options());
  comm.all_gather(all.unbind(0), own.contiguous()).wait();
  return all;
}

Best choose(const at::Tensor& values, const at::Tensor& indices, bool largest) {
  const auto best = largest ? values.amax(0) : values.amin(0);  // NaN where any is
  auto hit = values.eq(best);
  if (values.is_floating_point()) hit.logical_or_(values.isnan().logical_and_(best.isnan()));
  return {best, indices.masked_fill(hit.logical_not(), kNoIndex).amin(0)};
}

Best best(const LocalCall& call) {
  const LocalArgs args(call);
  const bool largest = is_largest(call);
  auto own = best_of_part(args, largest);
  const AxisMask axes = shard_axes(args.spec("self"), args.reduced_dims());
  if (axes == 0 || own.value.numel() == 0) return own;
  const auto& comm = call.mesh.communicator(axes);
  const auto values = gather(comm, own.value);
  return choose(values, gather(comm, own.index), largest);
}

void argmax(LocalCall& call) { give(call, {best(call).index}); }

void max_dim(LocalCall& call) {
  auto found = best(call);
  give(call, {found.value, found.index});
}

}  // namespace

void register_argmax_kernels() {
  register_local_kernel("argmax_sharded", argmax);
  register_local_kernel("max_dim_sharded", max_dim);
}

}  // namespace dtensor
