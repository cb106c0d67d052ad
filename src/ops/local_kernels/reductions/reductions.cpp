// Reductions that return values or indices, and squeezes of sharded dimensions.
#include <array>
#include <limits>

#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

// Reductions for which ATen's operator on a shard would be wrong or would raise on some ranks. The mean divides by the
// global count. Reductions without a value for an empty shard use their identity, so that no single rank raises.

void mean(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const auto out = call.outputs[0]->dtype;
  TORCH_CHECK(
      at::isFloatingType(out) || at::isComplexType(out),
      "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: ",
      self.scalar_type());
  const auto dims = args.reduced_dims();
  double count = 1;
  for (const auto d : dims) count *= static_cast<double>(args.global_sizes("self")[d]);
  auto sum = at::sum(self, dims, args.flag("keepdim"), accumulate_type(out)).div_(count);
  const AxisMask axes = shard_axes(args.spec("self"), dims);
  set_results(call, {reduce_contribution(call, sum, ReduceOp::sum, axes).to(out)});
}

std::vector<at::Tensor> identities(const LocalCall& call, const at::Tensor& self, c10::ArrayRef<ReduceOp> ops) {
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto& spec = *call.outputs[i];
    results.push_back(
        at::full(spec.local_sizes, reduce_identity(spec.dtype, ops[i]), self.options().dtype(spec.dtype)));
  }
  return results;
}

// Whether this rank's shard is empty along `dims` although the global tensor is not.
bool has_no_value(const at::Tensor& self, at::IntArrayRef full_tensor, at::IntArrayRef dims) {
  const auto has_none = [&](at::IntArrayRef sizes) {
    return std::any_of(dims.begin(), dims.end(), [&](std::int64_t d) { return sizes[d] == 0; });
  };
  return has_none(self.sizes()) && !has_none(full_tensor);
}

// `extremes`: the reduction of each result.
template <ReduceOp... extremes>
void reduce_with_identity(LocalCall& call) {
  constexpr std::array ops{extremes...};
  const LocalArgs args(call);
  const auto dims = args.reduced_dims();
  const AxisMask axes = shard_axes(args.spec("self"), dims);
  const auto self = args.tensor("self");
  auto results =
      has_no_value(self, args.global_sizes("self"), dims) ? identities(call, self, ops) : run_aten_operator(call);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    results[i] = reduce_contribution(call, results[i], ops[i], axes, static_cast<int>(i));
  }
  set_results(call, std::move(results));
}

// Reductions that return indices: argmax, argmin and max/min along a sharded dimension. Ranks gather the best value of
// each with its global index. Among equal values the smallest index is chosen, and NaN precedes all values, as on one
// device. An empty shard contributes an index that is never chosen.

constexpr std::int64_t kNoIndex = std::numeric_limits<std::int64_t>::max();

struct Best {
  at::Tensor value, index;
};

Best best_along(const at::Tensor& x, std::int64_t dim, bool keepdim, bool largest) {
  if (x.dim() > 0 && x.size(dim) == 0) {
    auto index = at::sum(x, dim, keepdim, at::kLong).fill_(kNoIndex);
    const auto identity = reduce_identity(x.scalar_type(), largest ? ReduceOp::max : ReduceOp::min);
    return {at::full_like(index, identity, x.options()), index};
  }
  auto [value, index] = largest ? at::max(x, dim, keepdim) : at::min(x, dim, keepdim);
  return {value, index};
}

// Converts row-major indices into the shard to row-major indices into the global tensor.
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
  const auto best = largest ? values.amax(0) : values.amin(0);  // NaN if any is NaN
  auto hit = values.eq(best);
  if (values.is_floating_point()) hit.logical_or_(values.isnan().logical_and_(best.isnan()));
  return {best, indices.masked_fill(hit.logical_not(), kNoIndex).amin(0)};
}

Best best(const LocalCall& call, bool largest) {
  const LocalArgs args(call);
  auto own = best_of_part(args, largest);
  const AxisMask axes = shard_axes(args.spec("self"), args.reduced_dims());
  if (axes == 0 || own.value.numel() == 0) return own;
  const auto& comm = call.mesh.communicator(axes);
  const auto values = gather(comm, own.value);
  return choose(values, gather(comm, own.index), largest);
}

template <bool largest>
void position(LocalCall& call) {
  set_results(call, {best(call, largest).index});
}

template <bool largest>
void value_and_position(LocalCall& call) {
  auto found = best(call, largest);
  set_results(call, {found.value, found.index});
}

// squeeze of a sharded dimension. A dimension of local size 1 must stay if its global size is not 1, so the local call
// names the dimensions of global size 1.

void squeeze_global(LocalCall& call) {
  const LocalArgs args(call);
  const auto self = args.tensor("self");
  const auto sizes = args.global_sizes("self");
  std::vector<std::int64_t> dims;
  for (const auto d : args.reduced_dims()) {
    if (sizes[static_cast<std::size_t>(d)] == 1) dims.push_back(d);
  }
  if (!call.info.gives_view && !call.info.inplace) return set_results(call, {self.squeeze(dims).clone()});
  const bool in_place = call.info.inplace;
  torch::jit::drop(call.stack, call.info.args.size());
  call.stack.emplace_back(in_place ? self.squeeze_(dims) : self.squeeze(dims));
}

}  // namespace

void add_reduction_kernels(LocalKernels& kernels) {
  kernels.emplace("mean_global_count", mean);
  kernels.emplace("max_with_identity", reduce_with_identity<ReduceOp::max>);
  kernels.emplace("min_with_identity", reduce_with_identity<ReduceOp::min>);
  kernels.emplace("aminmax_with_identity", reduce_with_identity<ReduceOp::min, ReduceOp::max>);
  kernels.emplace("argmax_sharded", position<true>);
  kernels.emplace("argmin_sharded", position<false>);
  kernels.emplace("max_dim_sharded", value_and_position<true>);
  kernels.emplace("min_dim_sharded", value_and_position<false>);
  kernels.emplace("squeeze_global", squeeze_global);
}

}  // namespace dtensor
