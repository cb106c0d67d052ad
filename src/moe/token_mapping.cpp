// Between DTensors and what the layer computes with: inputs as this rank's tokens, parameters as what this rank
// computes with.
#include "moe/token_mapping.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

#include "dtensor/factories.h"
#include "dtensor/hooks.h"
#include "dtensor/shards.h"
#include "moe/node.h"

namespace dtensor::moe {
namespace {

// Where an input that is whole on an axis is cut there: by rows of the first dimension if they divide, else along the
// second.
std::int64_t dim_to_cut(const DTensor& x, const Placements& tokens, std::int64_t axis_size) {
  std::int64_t parts = axis_size;
  for (std::size_t a = 0; a < tokens.size(); ++a) {
    if (tokens[a].is_shard() && tokens[a].dim() == 0) parts *= x.mesh().size(static_cast<std::int64_t>(a));
  }
  return x.dim() == 2 || x.size(0) % parts == 0 ? 0 : 1;
}

bool is_axis_of(const DeviceMesh& mesh, std::int64_t axis, at::IntArrayRef ranks) {
  return !ranks.empty() && slice_of(mesh, {axis_name(mesh, axis)}).ranks() == ranks;
}

std::vector<std::string> axes_that(const TokenMapping& b, const std::function<bool(std::int64_t)>& wanted) {
  std::vector<std::string> names;
  for (std::int64_t a = 0; a < b.mesh.ndim(); ++a) {
    if (b.mesh.size(a) > 1 && wanted(a)) names.push_back(axis_name(b.mesh, a));
  }
  return names;
}

Communicator communicator_over(const DeviceMesh& mesh, const std::vector<std::string>& names) {
  return names.empty() ? Communicator() : slice_of(mesh, names).communicator();
}

// Numbers of the tokens here, without communication: each rank cuts its part out of 0, 1, 2, ...
at::Tensor token_numbers(const TokenMapping& b) {
  const at::IntArrayRef sizes = at::IntArrayRef(b.sizes).slice(0, b.sizes.size() - 1);
  const at::NoGradGuard no_grad;
  const auto all = arange(c10::multiply_integers(sizes), b.mesh, {}, at::kLong).view(sizes);
  return DTensor(all).redistribute(b.tokens).to_local();
}

void fill_layout(TokenMapping& b, bool in_order) {
  auto& layout = b.layout;
  const auto is_cut = [&](std::int64_t a) { return b.tokens[a].is_shard(); };
  layout.ranks = communicator_over(b.mesh, axes_that(b, is_cut));
  layout.total = c10::multiply_integers(at::IntArrayRef(b.sizes).slice(0, b.sizes.size() - 1));
  const auto numbers = token_numbers(b);
  const auto flat = numbers.flatten();
  layout.first = flat.numel() > 0 ? flat[0].item<std::int64_t>() : 0;
  if (!in_order) layout.index = flat;
  const bool one_sequence = b.sizes.size() == 2;
  layout.sequences = one_sequence ? 1 : b.sizes[0];
  layout.sequences_here = one_sequence ? 1 : numbers.size(0);
  layout.sequence_ranks = communicator_over(
      b.mesh, axes_that(b, [&](std::int64_t a) { return is_cut(a) && (one_sequence || b.tokens[a].dim() > 0); }));
}

// The fewest and the most tokens that a rank has.
std::pair<std::int64_t, std::int64_t> extremes_of(const TokenMapping& b) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0;
  for (std::int64_t rank = 0; rank < b.mesh.size(); ++rank) {
    std::vector<std::int64_t> coordinate(static_cast<std::size_t>(b.mesh.ndim()));
    for (auto [a, rest] = std::pair(b.mesh.ndim() - 1, rank); a >= 0; rest /= b.mesh.size(a), --a) {
      coordinate[static_cast<std::size_t>(a)] = rest % b.mesh.size(a);
    }
    std::int64_t tokens = 1;
    for (std::size_t d = 0; d + 1 < b.sizes.size(); ++d) {
      std::int64_t length = 0;
      const auto dim = static_cast<std::int64_t>(d);
      for (const auto& s : shard_segments(b.sizes[d], dim, b.tokens, b.mesh.shape(), coordinate)) length += s.length;
      tokens *= length;
    }
    least = std::min(least, tokens), most = std::max(most, tokens);
  }
  return {least, most};
}

Placements reduced(Placements placements) {
  for (auto& p : placements) p = p.is_partial() ? Replicate() : p;
  return placements;
}

// Of a parameter's gradient, where it is computed whole: a sum over ranks with different tokens.
Placement gradient_of_whole(const DeviceMesh& mesh, std::int64_t axis) {
  return mesh.size(axis) > 1 ? Partial() : Replicate();
}

at::Tensor plain_parameter(const at::Tensor& parameter, const TokenMapping& b) {
  if (!b.mesh) return parameter;
  const Placements whole(b.mesh.ndim());
  Placements gradient;
  for (std::int64_t a = 0; a < b.mesh.ndim(); ++a) gradient.push_back(gradient_of_whole(b.mesh, a));
  return DTensor::from_local(parameter, b.mesh, whole, parameter.sizes()).to_local(gradient);
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

TokenMapping make_token_mapping(const DTensor& x, at::IntArrayRef etp) {
  TokenMapping b;
  b.mesh = b.token_mesh = x.mesh();
  b.sizes = x.sizes().vec();
  b.came = b.tokens = x.placements();
  bool in_order = true, cut_before = false;
  for (std::int64_t a = 0; a < b.mesh.ndim(); ++a) {
    auto& p = b.tokens[a];
    const bool cuts_tokens = p.is_shard() && p.dim() < x.dim() - 1;
    if (!cuts_tokens) p = Replicate();
    if (b.mesh.size(a) > 1 && !cuts_tokens) {
      if (is_axis_of(b.mesh, a, etp)) {
        b.etp_shares = true;
        b.layout.share = 1 / static_cast<double>(b.mesh.size(a));
      } else {
        p = Shard(dim_to_cut(x, b.tokens, b.mesh.size(a)));
      }
    }
    if (b.mesh.size(a) == 1 || p.is_replicate()) continue;
    // A ragged shard splits first, wherever its axis stands.
    in_order = in_order && p.dim() == 0 && p.split_factor() == 1 && !p.is_zigzag() && !(p.is_ragged() && cut_before);
    cut_before = true;
  }
  b.result = b.tokens;
  for (std::int64_t a = 0; a < b.mesh.ndim(); ++a) {
    if (b.mesh.size(a) > 1 && b.tokens[a].is_replicate()) b.result[a] = Partial();
  }
  fill_layout(b, in_order);
  std::tie(b.fewest, b.most) = extremes_of(b);
  return b;
}

TokenMapping make_plain_mapping(const at::Tensor& x, const DeviceMesh& mesh) {
  TokenMapping b;
  const auto ranks = mesh && mesh.size() > 1 ? mesh.communicator() : Communicator();
  b.token_mesh = mesh;
  b.layout.ranks = ranks;
  b.layout.sequence_ranks = x.dim() == 2 ? ranks : Communicator();
  b.layout.sequences_here = x.dim() == 2 ? 1 : x.size(0);
  b.layout.sequences = x.dim() == 2 || !ranks ? b.layout.sequences_here : -1;  // others may have other numbers of them
  return b;
}

const TokenMapping& TokenMappings::of(const at::Tensor& x, const DeviceMesh& experts, at::IntArrayRef etp) {
  constexpr std::size_t kKinds = 16;
  if (!is_dtensor(x)) {
    std::erase_if(seen_, [](const auto& b) { return !b.mesh; });
    return seen_.emplace_back(make_plain_mapping(x, experts));
  }
  const DTensor tensor(x);
  for (const auto& b : seen_) {
    if (b.mesh && x.sizes() == b.sizes && b.came == tensor.placements() && b.mesh == tensor.mesh()) return b;
  }
  if (seen_.size() >= kKinds) seen_.clear();
  return seen_.emplace_back(make_token_mapping(tensor, etp));
}

at::Tensor local_view(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).to_local() : t; }

at::Tensor to_tokens(const at::Tensor& x, const TokenMapping& b) {
  return b.mesh ? DTensor(x).redistribute(b.tokens) : x;
}

at::Tensor local_part(const at::Tensor& x, const TokenMapping& b) { return b.mesh ? DTensor(x).to_local(b.result) : x; }

at::Tensor from_part(const at::Tensor& part, const TokenMapping& b) {
  if (!b.mesh) return part;
  return DTensor::from_local(part, b.mesh, b.result, b.sizes).redistribute(reduced(b.came));
}

at::Tensor from_share(const at::Tensor& share, const TokenMapping& b) {
  if (!b.mesh || !share.defined()) return share;
  Placements sum;
  for (std::int64_t a = 0; a < b.mesh.ndim(); ++a) sum.push_back(gradient_of_whole(b.mesh, a));
  return DTensor::from_local(share, b.mesh, sum, at::IntArrayRef());
}

namespace {

// A parameter as it is stored, in placements that gather it on all axes but `split`.
struct Gathering {
  DTensor stored;
  Placements used, gradient;
  bool moves = false;  // somebody else holds a part
};

Gathering plan_gathering(const at::Tensor& parameter, const std::vector<std::string>& split) {
  Gathering g{DTensor(parameter), {}, {}};
  const auto mesh = g.stored.mesh();
  g.used = g.gradient = g.stored.placements();
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) {
    const bool keeps = std::find(split.begin(), split.end(), axis_name(mesh, a)) != split.end();
    g.moves = g.moves || (!keeps && !g.used[a].is_replicate() && mesh.size(a) > 1);
    g.used[a] = keeps ? g.used[a].as_storage(false) : Replicate();
    g.gradient[a] = keeps ? g.used[a] : gradient_of_whole(mesh, a);
  }
  return g;
}

// Gives the leaf its gradient unreduced, as the engine's operators do: the leaf (or its unit) reduces it.
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

}  // namespace

namespace {

struct SumCopiesBackward final : Node {
  explicit SumCopiesBackward(Communicator c) : copies(std::move(c)) {}
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    const NoMeshScope plain;
    auto sum = grads[0].defined() ? grads[0].clone(at::MemoryFormat::Contiguous) : input_metadata(0).zeros_like();
    copies.all_reduce(sum, ReduceOp::sum).wait();
    return {sum};
  }
  std::string name() const override { return "SumCopiesBackward"; }
  Communicator copies;
};

// This rank's line through the copies of a parameter: the axes of `tokens` that its mesh lacks.
Communicator copies_of(const DeviceMesh& mesh, const DeviceMesh& tokens) {
  if (!tokens || mesh.size() >= tokens.size()) return {};
  const auto holds = [&](std::int64_t rank) {
    return std::find(mesh.ranks().begin(), mesh.ranks().end(), rank) != mesh.ranks().end();
  };
  std::vector<std::string> lacking;
  std::int64_t kept = 1;
  for (std::int64_t a = 0; a < tokens.ndim(); ++a) {
    const auto line = slice_of(tokens, {axis_name(tokens, a)});
    const bool whole = std::all_of(line.ranks().begin(), line.ranks().end(), holds);
    if (whole) kept *= line.size();
    if (!whole) lacking.push_back(axis_name(tokens, a));
  }
  TORCH_CHECK(kept == mesh.size(), "a parameter of a mixture of experts lies on ", mesh.str(),
              ", which is no slice of the ranks that have tokens, ", tokens.str());
  return communicator_over(tokens, lacking);
}

at::Tensor sum_copies(at::Tensor local, const DeviceMesh& mesh, const TokenMapping& b) {
  if (!needs_graph(local)) return local;
  const auto copies = copies_of(mesh, b.token_mesh);
  if (!copies) return local;
  at::Tensor result;
  {
    const LocalScope guard;
    result = local.view(local.sizes());
  }
  return with_node(result, make_node<SumCopiesBackward>(copies), local);
}

}  // namespace

at::Tensor whole_parameter(const at::Tensor& parameter, const TokenMapping& b) {
  // A copy: what autograd keeps of it must not hold the gathered parameters of a whole unit.
  if (!is_dtensor(parameter) || !plan_gathering(parameter, {}).moves) return expert_parameter(parameter, {}, b);
  return expert_parameter(parameter, {}, b).clone();
}

at::Tensor expert_parameter(const at::Tensor& parameter, const std::vector<std::string>& split, const TokenMapping& b) {
  if (!parameter.defined()) return parameter;
  if (!is_dtensor(parameter)) return plain_parameter(parameter, b);
  const auto g = plan_gathering(parameter, split);
  if (!g.moves) return sum_copies(g.stored.redistribute(g.used).to_local(g.gradient), g.stored.mesh(), b);
  auto local = gathered_local(g.stored, g.used);
  if (!needs_graph(parameter)) return local;
  g.stored.to_local(g.gradient);  // the leaf's own hooks are set where an operator or to_local first sees it
  local = local.view(local.sizes());
  local = with_node(local, make_node<GatherBackward>(g.stored.mesh(), g.gradient, g.stored.sizes()), parameter);
  return sum_copies(local, g.stored.mesh(), b);
}

std::function<at::Tensor()> gather_again(const at::Tensor& parameter, const std::vector<std::string>& split) {
  if (!parameter.defined() || !is_dtensor(parameter)) return {};
  auto g = plan_gathering(parameter, split);
  if (!g.moves) return {};
  return [g, generation = g.stored.generation()] {
    TORCH_CHECK(g.stored.generation() == generation, "an expert parameter was written to between forward and backward");
    return gathered_local(g.stored, g.used);
  };
}

}  // namespace dtensor::moe
