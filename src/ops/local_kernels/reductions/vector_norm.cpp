// Vector norms over sharded dimensions, of one tensor or of a list. Ranks compute the norm of their shard, all_reduce
// its p-th power (in double, against overflow and rounding), and take the root. A list may mix meshes and placements:
// tensors that are sharded over the same axes of the same mesh share one collective. Axes that replicate a tensor are
// not summed, so each element counts once.
#include <cmath>

#include "internal/local_norms.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

struct Order {
  double p;
  bool extreme() const { return std::isinf(p); }
  ReduceOp op() const { return !extreme() ? ReduceOp::sum : p > 0 ? ReduceOp::max : ReduceOp::min; }
  bool additive() const { return extreme() || p == 0 || p == 1; }  // norms are combined without powers
};

Order order_of(const c10::IValue& value) { return {value.isNone() ? 2.0 : value.toScalar().toDouble()}; }

at::Tensor powers(const at::Tensor& norms, Order order) {
  return order.additive() ? norms.to(at::kDouble) : norms.to(at::kDouble).pow(order.p);
}

at::Tensor roots(const at::Tensor& sums, Order order) { return order.additive() ? sums : sums.pow(1 / order.p); }

double empty_contribution(Order order) { return order.extreme() && order.p < 0 ? -order.p : 0; }

at::Tensor contribution(const at::Tensor& x, Order order, at::IntArrayRef dims, bool keepdim) {
  const bool empty = std::any_of(dims.begin(), dims.end(), [&](std::int64_t d) { return x.size(d) == 0; });
  if (empty) return at::sum(x.abs(), dims, keepdim, at::kDouble).fill_(empty_contribution(order));
  const auto type = accumulate_type(c10::toRealValueType(x.scalar_type()));
  const auto wide = at::isComplexType(x.scalar_type()) ? x : x.to(type);
  return powers(at::linalg_vector_norm(wide, order.p, dims, keepdim), order);
}

void vector_norm(LocalCall& call) {
  const LocalArgs args(call);
  const Order order = order_of(args.value(args.has("ord") ? "ord" : "p"));
  const auto dims = args.reduced_dims();
  auto x = args.tensor("self");
  if (const auto dtype = args.dtype()) x = x.to(*dtype);
  auto sum = contribution(x, order, dims, args.flag("keepdim"));
  sum = all_reduce(call.mesh, sum, order.op(), shard_axes(args.spec("self"), dims));
  set_results(call, {roots(sum, order).to(call.outputs[0]->dtype)});
}

// Tensors of a list whose norms share one collective.
struct Group {
  const MeshInfo* mesh;
  AxisMask axes;
  std::vector<std::size_t> members;
};

// Whether the tensor's mesh excludes this rank, which then has no norm and does not participate in the collective.
bool absent(const TensorSpec* spec) { return spec != nullptr && !spec->mesh->is_member; }

// Groups in the order of the list, so that all ranks issue the collectives in the same order.
std::vector<Group> groups_of(c10::ArrayRef<SpecPtr> specs, std::size_t count) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < count; ++i) {
    if (absent(specs[i].get())) continue;
    const AxisMask axes = shard_axes(specs[i].get());
    const MeshInfo* mesh = axes == 0 ? nullptr : specs[i]->mesh.get();
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.mesh == mesh && g.axes == axes; });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{mesh, axes, {}});
    group->members.push_back(i);
  }
  return groups;
}

// Norms of this rank's parts. Empty ones contribute nothing.
std::vector<at::Tensor> norms_of_parts(const std::vector<at::Tensor>& tensors, Order order,
                                       std::optional<at::ScalarType> dtype) {
  auto norms = local_norms(tensors, order.p, dtype);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (norms[i].defined() || !tensors[i].defined()) continue;
    norms[i] = at::full({},
                        order.additive() ? empty_contribution(order)
                        : order.p < 0    ? INFINITY
                                         : 0,
                        tensors[i].options().dtype(at::kDouble));
  }
  return norms;
}

void check_not_empty(const LocalCall& call, std::size_t count, Order order) {
  for (std::size_t i = 0; i < count && order.extreme(); ++i) {
    const auto* spec = call.inputs[i].get();
    const bool empty = spec != nullptr && c10::multiply_integers(spec->sizes) == 0;
    TORCH_CHECK(!empty, "_foreach_norm cannot compute the infinity norm on an empty tensor (", spec->str(), ")");
  }
}

// The dtype of result i. A position without a mesh has a regular tensor as result.
at::ScalarType result_type(const LocalCall& call, std::size_t i) {
  return call.outputs[i] ? call.outputs[i]->dtype : call.decision.outputs[i].meta.dtype;
}

// Combines the norms of a group. Without sharded axes the local norms are the result.
void combine_group(const LocalCall& call, const Group& group, Order order, std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> own;
  for (const auto i : group.members) own.push_back(norms[i]);
  auto stacked = at::stack(own).to(at::kDouble);
  if (group.mesh != nullptr) {
    const auto sums = all_reduce(as_mesh_impl(*group.mesh), powers(stacked, order), order.op(), group.axes);
    stacked = roots(sums, order);
  }
  const auto common = result_type(call, group.members.front());
  const auto exact = stacked.unbind(), results = stacked.to(common).unbind();
  for (std::size_t k = 0; k < own.size(); ++k) {
    const auto i = group.members[k];
    const auto type = result_type(call, i);
    norms[i] = type == common ? results[k] : exact[k].to(type);
  }
}

void foreach_norm(LocalCall& call) {
  const LocalArgs args(call);
  const auto tensors = args.value("self").toTensorVector();
  const Order order = order_of(args.value("ord"));
  check_not_empty(call, tensors.size(), order);
  auto norms = norms_of_parts(tensors, order, args.dtype());
  for (const auto& group : groups_of(call.inputs, tensors.size())) combine_group(call, group, order, norms);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (absent(call.inputs[i].get())) norms[i] = at::Tensor();
  }
  torch::jit::drop(call.stack, call.info.args.size());
  call.stack.emplace_back(std::move(norms));
}

}  // namespace

std::vector<at::Tensor> local_norms(const std::vector<at::Tensor>& tensors, double p,
                                    std::optional<at::ScalarType> dtype) {
  std::vector<at::Tensor> norms(tensors.size());
  for (const bool half : {true, false}) {
    std::vector<std::size_t> where;
    std::vector<at::Tensor> chosen;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& t = tensors[i];
      if (!t.defined() || t.numel() == 0 || (accumulate_type(t.scalar_type()) != t.scalar_type()) != half) continue;
      where.push_back(i);
      chosen.push_back(t);
    }
    if (chosen.empty()) continue;
    auto found = at::_foreach_norm(chosen, p, half && !dtype ? at::kFloat : dtype);
    for (std::size_t k = 0; k < where.size(); ++k) norms[where[k]] = std::move(found[k]);
  }
  return norms;
}

void add_norm_kernels(LocalKernels& kernels) {
  kernels.emplace("vector_norm_sharded", vector_norm);
  kernels.emplace("foreach_norm", foreach_norm);
}

}  // namespace dtensor
