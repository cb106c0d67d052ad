// Conversion between DTensors and the local tensors that the layer computes with.
#include "moe/token_mapping.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

#include "dtensor/hooks.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"
#include "internal/gather_hook.h"
#include "internal/host_work.h"
#include "internal/region.h"
#include "internal/shard_segments.h"
#include "moe/local_function.h"

namespace dtensor::moe {
namespace {

// The dimension along which to shard an input that is replicated on an axis: the first if the sizes divide evenly, else
// the second.
std::int64_t dim_to_shard(const DTensor& x, const Placements& tokens, std::int64_t axis_size) {
  std::int64_t parts = axis_size;
  for (std::size_t a = 0; a < tokens.size(); ++a) {
    if (tokens[a].is_shard() && tokens[a].dim() == 0) parts *= x.mesh().size(static_cast<std::int64_t>(a));
  }
  return x.dim() == 2 || x.size(0) % parts == 0 ? 0 : 1;
}

bool is_axis_of(const DeviceMesh& mesh, std::int64_t axis, at::IntArrayRef ranks) {
  return !ranks.empty() && slice_of(mesh, {axis_name(mesh, axis)}).ranks() == ranks;
}

std::vector<std::string> axes_where(const TokenMapping& mapping, const std::function<bool(std::int64_t)>& wanted) {
  std::vector<std::string> names;
  for (std::int64_t a = 0; a < mapping.mesh.ndim(); ++a) {
    if (mapping.mesh.size(a) > 1 && wanted(a)) names.push_back(axis_name(mapping.mesh, a));
  }
  return names;
}

Communicator communicator_over(const DeviceMesh& mesh, const std::vector<std::string>& names) {
  return names.empty() ? Communicator() : slice_of(mesh, names).communicator();
}

// Indices of this rank's tokens, [tokens] or [sequences, positions], without communication and without all others.
at::Tensor token_numbers(const TokenMapping& mapping) {
  const LocalNoGradGuard regular;
  const auto longs = at::TensorOptions(at::kLong).device(mapping.mesh.device_type());
  const auto coordinate = mapping.mesh.coordinate();
  if (!coordinate) return at::zeros(std::vector<std::int64_t>(mapping.sizes.size() - 1), longs);  // not a member
  at::Tensor numbers = at::zeros({}, longs);
  for (std::size_t d = 0; d + 1 < mapping.sizes.size(); ++d) {
    std::vector<at::Tensor> here;
    for (const auto& s : shard_segments(mapping.sizes[d], static_cast<std::int64_t>(d), mapping.tokens,
                                        mapping.mesh.shape(), *coordinate)) {
      here.push_back(at::arange(s.offset, s.offset + s.length, longs));
    }
    numbers = numbers.unsqueeze(-1) * mapping.sizes[d] + at::cat(here);
  }
  return numbers;
}

void fill_layout(TokenMapping& mapping, bool in_order) {
  auto& layout = mapping.layout;
  const auto is_cut = [&](std::int64_t a) { return mapping.tokens[a].is_shard(); };
  layout.ranks = communicator_over(mapping.mesh, axes_where(mapping, is_cut));
  layout.total = c10::multiply_integers(at::IntArrayRef(mapping.sizes).slice(0, mapping.sizes.size() - 1));
  const auto numbers = token_numbers(mapping);
  const auto flat = numbers.flatten();
  layout.first = flat.numel() > 0 ? flat[0].item<std::int64_t>() : 0;
  if (!in_order) layout.index = flat;
  const bool one_sequence = mapping.sizes.size() == 2;
  layout.sequences = one_sequence ? 1 : mapping.sizes[0];
  layout.sequences_here = one_sequence ? 1 : numbers.size(0);
  const auto cuts = [&](std::int64_t a) { return is_cut(a) && (one_sequence || mapping.tokens[a].dim() > 0); };
  layout.sequence_ranks = communicator_over(mapping.mesh, axes_where(mapping, cuts));
}

// The minimum and maximum number of tokens of a rank.
std::pair<std::int64_t, std::int64_t> min_max_of(const TokenMapping& mapping) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0;
  const auto sizes = at::IntArrayRef(mapping.sizes).slice(0, mapping.sizes.size() - 1);
  for (const std::int64_t rank : mapping.mesh.ranks()) {
    const auto coordinate = mapping.mesh.coordinate_of(rank).value();
    const auto tokens = shard_region(sizes, mapping.tokens, mapping.mesh.shape(), coordinate).numel();
    least = std::min(least, tokens), most = std::max(most, tokens);
  }
  return {least, most};
}

Placements reduced(Placements placements) {
  for (auto& p : placements) p = p.is_partial() ? Replicate() : p;
  return placements;
}

// Placement of the gradient of a replicated parameter: a sum over ranks with different tokens, which the operators of a
// BitIdentical scope have completed.
Placement gradient_of_replicated(const DeviceMesh& mesh, std::int64_t axis) {
  return mesh.size(axis) > 1 && !is_bit_identical() ? Partial() : Replicate();
}

at::Tensor regular_parameter(const at::Tensor& parameter, const TokenMapping& mapping) {
  if (!mapping.mesh) return parameter;
  const Placements full(mapping.mesh.ndim());
  Placements gradient;
  for (std::int64_t a = 0; a < mapping.mesh.ndim(); ++a) gradient.push_back(gradient_of_replicated(mapping.mesh, a));
  return DTensor::from_local(parameter, mapping.mesh, full, parameter.sizes()).to_local(gradient);
}

}  // namespace

std::string axis_name(const DeviceMesh& mesh, std::int64_t axis) {
  return mesh.names().empty() ? std::to_string(axis) : mesh.names()[axis];
}

DeviceMesh slice_of(const DeviceMesh& mesh, const std::vector<std::string>& axes) {
  std::vector<std::string> names;
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) names.push_back(axis_name(mesh, a));
  return (mesh.names().empty() ? mesh.view(mesh.shape(), names) : mesh)[axes];
}

namespace {

// Cuts axes on which ranks have the same tokens. Returns whether tokens are in the order of ranks.
bool cut_tokens(TokenMapping& mapping, const DTensor& x, at::IntArrayRef etp) {
  bool in_order = true, cut_before = false;
  for (std::int64_t a = 0; a < mapping.mesh.ndim(); ++a) {
    auto& p = mapping.tokens[a];
    const bool cuts_tokens = p.is_shard() && p.dim() < x.dim() - 1;
    if (!cuts_tokens) p = Replicate();
    if (mapping.mesh.size(a) > 1 && !cuts_tokens) {
      if (is_axis_of(mapping.mesh, a, etp)) {
        mapping.etp_ranks_share_tokens = true;
        mapping.layout.share = 1 / static_cast<double>(mapping.mesh.size(a));
      } else {
        p = Shard(dim_to_shard(x, mapping.tokens, mapping.mesh.size(a)));
      }
    }
    if (mapping.mesh.size(a) == 1 || p.is_replicate()) continue;
    // A shard that lists sizes splits before other axes, independent of its axis.
    in_order = in_order && p.dim() == 0 && is_contiguous_split(p) && !(lists_sizes(p) && cut_before);
    cut_before = true;
  }
  return in_order;
}

// The first dimension over all axes but that of `etp`.
void cut_in_order(TokenMapping& mapping, at::IntArrayRef etp) {
  for (std::int64_t a = 0; a < mapping.mesh.ndim(); ++a) {
    const bool shares = is_axis_of(mapping.mesh, a, etp);
    mapping.tokens[a] = shares || mapping.mesh.size(a) == 1 ? Placement(Replicate()) : Placement(Shard(0));
    mapping.etp_ranks_share_tokens |= shares;
  }
}

}  // namespace

TokenMapping make_token_mapping(const DTensor& x, at::IntArrayRef etp) {
  TokenMapping mapping;
  mapping.mesh = mapping.token_mesh = x.mesh();
  mapping.sizes = x.sizes().vec();
  mapping.input_placements = mapping.tokens = x.placements();
  mapping.bit_identical = is_bit_identical();
  if (mapping.bit_identical) cut_in_order(mapping, etp);
  const bool in_order = mapping.bit_identical || cut_tokens(mapping, x, etp);
  mapping.result = mapping.tokens;
  for (std::int64_t a = 0; a < mapping.mesh.ndim() && !mapping.bit_identical; ++a) {
    if (mapping.mesh.size(a) > 1 && mapping.tokens[a].is_replicate()) mapping.result[a] = Partial();
  }
  fill_layout(mapping, in_order);
  std::tie(mapping.min_tokens, mapping.max_tokens) = min_max_of(mapping);
  return mapping;
}

TokenMapping make_regular_mapping(const at::Tensor& x, const DeviceMesh& mesh) {
  TokenMapping mapping;
  const auto ranks = mesh && mesh.size() > 1 ? mesh.communicator() : Communicator();
  mapping.token_mesh = mesh;
  mapping.layout.ranks = ranks;
  mapping.layout.sequence_ranks = x.dim() == 2 ? ranks : Communicator();
  mapping.layout.sequences_here = x.dim() == 2 ? 1 : x.size(0);
  // Other ranks may have other numbers of sequences.
  mapping.layout.sequences = x.dim() == 2 || !ranks ? mapping.layout.sequences_here : -1;
  return mapping;
}

const TokenMapping& TokenMappings::of(const at::Tensor& x, const DeviceMesh& experts, at::IntArrayRef etp) {
  constexpr std::size_t kKinds = 16;
  if (!is_dtensor(x)) {
    std::erase_if(cache_, [](const auto& mapping) { return !mapping.mesh; });
    return cache_.emplace_back(make_regular_mapping(x, experts));
  }
  const DTensor tensor(x);
  for (const auto& mapping : cache_) {
    const bool same = mapping.mesh && x.sizes() == mapping.sizes && mapping.input_placements == tensor.placements();
    if (same && mapping.mesh == tensor.mesh() && mapping.bit_identical == is_bit_identical()) return mapping;
  }
  if (cache_.size() >= kKinds) cache_.clear();
  return cache_.emplace_back(make_token_mapping(tensor, etp));
}

at::Tensor local_view(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).to_local() : t; }

// In a BitIdentical scope an alias, so that gradients of the tokens are added before those of other uses of x also
// where nothing moves.
at::Tensor to_tokens(const at::Tensor& x, const TokenMapping& mapping) {
  if (!mapping.mesh) return x;
  const auto tokens = DTensor(x).redistribute(mapping.tokens);
  return mapping.bit_identical ? at::alias(tokens) : at::Tensor(tokens);
}

at::Tensor local_part(const at::Tensor& x, const TokenMapping& mapping) {
  return mapping.mesh ? DTensor(x).to_local(mapping.result) : x;
}

at::Tensor from_local_tokens(const at::Tensor& part, const TokenMapping& mapping) {
  if (!mapping.mesh) return part;
  return DTensor::from_local(part, mapping.mesh, mapping.result, mapping.sizes)
      .redistribute(reduced(mapping.input_placements));
}

at::Tensor from_partial_scalar(const at::Tensor& share, const TokenMapping& mapping) {
  if (!mapping.mesh || !share.defined() || is_dtensor(share)) return share;
  Placements sum;
  for (std::int64_t a = 0; a < mapping.mesh.ndim(); ++a) sum.push_back(gradient_of_replicated(mapping.mesh, a));
  return DTensor::from_local(share, mapping.mesh, sum, at::IntArrayRef());
}

namespace {

// A stored parameter, and placements that gather it on all axes but `split`.
struct GatherPlan {
  DTensor stored;
  Placements used, gradient;
  bool moves = false;  // whether other ranks or the host hold parts
};

GatherPlan plan_gather(const at::Tensor& parameter, const std::vector<std::string>& split) {
  GatherPlan g{DTensor(parameter), {}, {}};
  const auto mesh = g.stored.mesh();
  g.used = g.gradient = g.stored.placements();
  g.moves = is_offloaded(mesh);
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) {
    const bool keeps = std::find(split.begin(), split.end(), axis_name(mesh, a)) != split.end();
    g.moves = g.moves || (!keeps && !g.used[a].is_replicate() && mesh.size(a) > 1);
    g.used[a] = keeps ? g.used[a].as_storage(false) : Replicate();
    g.gradient[a] = keeps ? g.used[a] : gradient_of_replicated(mesh, a);
  }
  return g;
}

// Returns the gradient unreduced, as other operators do; the leaf or its FSDP unit reduces it.
struct GatherBackward final : Node {
  GatherBackward(DeviceMesh m, Placements p, at::IntArrayRef s)
      : mesh(std::move(m)), placements(std::move(p)), sizes(s) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {DTensor::from_local(grads[0], mesh, placements, sizes)};
  }
  std::string name() const override { return "GatherExpertBackward"; }
  DeviceMesh mesh;
  Placements placements;
  at::DimVector sizes;
};

struct SumReplicasBackward final : Node {
  explicit SumReplicasBackward(Communicator c) : copies(std::move(c)) {}
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    const NoMeshScopeGuard regular;
    auto sum = grads[0].defined() ? grads[0].clone(at::MemoryFormat::Contiguous) : input_metadata(0).zeros_like();
    copies.all_reduce(sum, ReduceOp::sum).wait();
    return {sum};
  }
  std::string name() const override { return "SumReplicasBackward"; }
  Communicator copies;
};

// This rank's communicator over the replicas of a parameter: the axes of `tokens` that its mesh lacks.
Communicator replicas_of(const DeviceMesh& mesh, const DeviceMesh& tokens) {
  if (!tokens || mesh.size() >= tokens.size()) return {};
  const auto holds = [&](std::int64_t rank) {
    return std::find(mesh.ranks().begin(), mesh.ranks().end(), rank) != mesh.ranks().end();
  };
  std::vector<std::string> lacking;
  std::int64_t kept = 1;
  for (std::int64_t a = 0; a < tokens.ndim(); ++a) {
    const auto line = slice_of(tokens, {axis_name(tokens, a)});
    const bool full = std::all_of(line.ranks().begin(), line.ranks().end(), holds);
    if (full) kept *= line.size();
    if (!full) lacking.push_back(axis_name(tokens, a));
  }
  TORCH_CHECK(kept == mesh.size(), "a parameter of a mixture of experts is on ", mesh.str(),
              "; expected a slice of the mesh of the tokens, ", tokens.str());
  return communicator_over(tokens, lacking);
}

at::Tensor sum_replicas(at::Tensor local, const DeviceMesh& mesh, const TokenMapping& mapping) {
  if (!needs_graph(local)) return local;
  const auto copies = replicas_of(mesh, mapping.token_mesh);
  if (!copies) return local;
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = local.view(local.sizes());
  }
  return with_node(result, make_node<SumReplicasBackward>(copies), local);
}

}  // namespace

at::Tensor replicated_parameter(const at::Tensor& parameter, const TokenMapping& mapping) {
  // A copy, so that tensors saved by autograd do not keep the gathered parameters of the FSDP unit alive.
  if (!is_dtensor(parameter) || !plan_gather(parameter, {}).moves) return expert_parameter(parameter, {}, mapping);
  return expert_parameter(parameter, {}, mapping).clone();
}

at::Tensor expert_parameter(const at::Tensor& parameter, const std::vector<std::string>& split,
                            const TokenMapping& mapping) {
  if (!parameter.defined()) return parameter;
  if (!is_dtensor(parameter)) return regular_parameter(parameter, mapping);
  const auto g = plan_gather(parameter, split);
  if (!g.moves) return sum_replicas(g.stored.redistribute(g.used).to_local(g.gradient), g.stored.mesh(), mapping);
  auto local = gathered_local(g.stored, g.used);
  if (!needs_graph(parameter)) return local;
  g.stored.to_local(g.gradient);  // the first to_local() or operator call installs the hooks of the leaf
  local = local.view(local.sizes());
  local = with_node(local, make_node<GatherBackward>(compute_mesh_of(g.stored.mesh()), g.gradient, g.stored.sizes()),
                    parameter);
  return sum_replicas(local, g.stored.mesh(), mapping);
}

std::function<at::Tensor()> regather_function(const at::Tensor& parameter, const std::vector<std::string>& split) {
  if (!parameter.defined() || !is_dtensor(parameter)) return {};
  auto g = plan_gather(parameter, split);
  if (!g.moves) return {};
  return [g, generation = g.stored.generation()] {
    TORCH_CHECK(g.stored.generation() == generation, "an expert parameter was written to between forward and backward");
    return gathered_local(g.stored, g.used);
  };
}

}  // namespace dtensor::moe
