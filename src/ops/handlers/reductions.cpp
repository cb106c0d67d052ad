// Reductions whose plain local form would be wrong or would raise on some ranks: the mean (divides by the global count)
// and those that have no value for an empty shard (filled with their identity, so that no rank raises alone; PITFALLS
// A12).
#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

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
  give(call, {reduce_contribution(call, sum, ReduceOp::sum, axes).to(out)});
}

ReduceOp op_of(std::string_view name) {
  if (name == "amax" || name == "max" || name == "any") return ReduceOp::max;
  if (name == "amin" || name == "min" || name == "all") return ReduceOp::min;
  TORCH_CHECK(name == "prod", "reduce_with_identity: no identity is known for ", name);
  return ReduceOp::product;
}

std::vector<ReduceOp> ops_of(const LocalCall& call) {
  if (base_name(call) == "aminmax") return {ReduceOp::min, ReduceOp::max};
  return {op_of(base_name(call))};
}

std::vector<at::Tensor> identities(const LocalCall& call, const at::Tensor& self, const std::vector<ReduceOp>& ops) {
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto& spec = *call.outputs[i];
    results.push_back(
        at::full(spec.local_sizes, reduce_identity(spec.dtype, ops[i]), self.options().dtype(spec.dtype)));
  }
  return results;
}

// The whole tensor has a value, of which this part knows nothing.
bool lacks_value(const LocalCall& call, const at::Tensor& self, at::IntArrayRef whole, at::IntArrayRef dims) {
  const auto name = base_name(call);
  if (name == "prod" || name == "any" || name == "all") return false;
  const auto has_none = [&](at::IntArrayRef sizes) {
    return std::any_of(dims.begin(), dims.end(), [&](std::int64_t d) { return sizes[d] == 0; });
  };
  return has_none(self.sizes()) && !has_none(whole);
}

void reduce_with_identity(LocalCall& call) {
  const LocalArgs args(call);
  const auto dims = args.reduced_dims();
  const AxisMask axes = shard_axes(args.spec("self"), dims);
  const auto self = args.tensor("self");
  const auto ops = ops_of(call);
  auto results =
      lacks_value(call, self, args.global_sizes("self"), dims) ? identities(call, self, ops) : run_plain(call);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    results[i] = reduce_contribution(call, results[i], ops[i], axes, static_cast<int>(i));
  }
  give(call, std::move(results));
}

}  // namespace

void register_reduction_kernels() {
  register_local_kernel("mean_global_count", mean);
  register_local_kernel("reduce_with_identity", reduce_with_identity);
}

}  // namespace dtensor
