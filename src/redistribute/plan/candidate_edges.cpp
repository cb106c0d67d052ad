// The edges that the planner considers. Shards may change to their goal placements at any time, in one exchange.
// Replicated axes may be sliced before a reduction, so that less is reduced. Partial axes are reduced alone or
// together, to Replicate or to shards of the local part. Partials are created last. A list of different Partial ops
// means nested reductions, with the leftmost axis outermost. So an axis is reduced only after those to its right that
// do not commute.
#include "redistribute/plan/candidate_edges.h"

#include <algorithm>
#include <bit>

namespace dtensor {
namespace {

AxisMask bit(std::size_t axis) { return AxisMask{1} << axis; }

bool commute(const Placement& a, const Placement& b) {
  const auto additive = [](const Placement& p) { return p.is_partial(ReduceOp::sum) || p.is_partial(ReduceOp::avg); };
  return a.reduce_op() == b.reduce_op() || (additive(a) && additive(b));
}

// Whether `axes` may be reduced, or made partial, while the other axes stay: axes to the right of each are nested
// inside it.
bool reorderable(const Placements& inner, const Placements& outer, AxisMask axes) {
  for (std::size_t i = 0; i < outer.size(); ++i) {
    for (std::size_t j = i + 1; has_axis(axes, i) && j < inner.size(); ++j) {
      if (!has_axis(axes, j) && inner[j].is_partial() && !commute(outer[i], inner[j])) return false;
    }
  }
  return true;
}

bool same_op(const Placements& placements, AxisMask axes) {
  const Placement& first = placements[std::countr_zero(axes)];
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (has_axis(axes, i) && placements[i] != first) return false;
  }
  return true;
}

// A shard of `dim` on `axis` that splits the parts of the other axes further.
Placement innermost_shard(const Placements& placements, std::size_t axis, std::int64_t dim, at::IntArrayRef mesh) {
  std::int64_t right = 1;
  for (std::size_t j = axis + 1; j < mesh.size(); ++j) right *= placements[j].is_shard(dim) ? mesh[j] : 1;
  return after_split(Shard(dim), right);
}

}  // namespace

struct EdgeGenerator::State {
  const Placements& at;
  SplitLayout layout;
  std::vector<CandidateEdge>& moves;
  AxisMask partial;    // partial axes
  AxisMask to_reduce;  // the partial axes that must be reduced
};

CandidateEdge exchange_edge(const Placements& from, const SplitLayout& from_layout, const Placements& to,
                            const TensorGeometry& geometry) {
  const SplitLayout to_layout(to, geometry);
  const Traffic traffic = exchange_traffic(from_layout, to_layout, geometry);
  if (refines(to_layout, from_layout) || (traffic.exact && traffic.received == 0)) {
    return {EdgeKind::slice, axes_where(from.size(), [&](std::size_t i) { return from[i] != to[i]; }), to, {}};
  }
  const AxisMask axes = exchange_axes(from_layout, to_layout, geometry);
  const EdgeKind kind = refines(from_layout, to_layout) ? EdgeKind::all_gather : EdgeKind::all_to_all;
  return {kind, axes, to, exchange_cost(traffic.received, axes, geometry)};
}

EdgeGenerator::EdgeGenerator(const Placements& start, const Placements& goal, const TensorGeometry& geometry)
    : goal_(goal), geometry_(geometry) {
  const auto add = [this](std::int64_t dim) {
    if (std::find(dims_.begin(), dims_.end(), dim) == dims_.end()) dims_.push_back(dim);
  };
  for (const Placements* list : {&goal, &start}) {
    for (const Placement& p : *list) {
      if (p.is_shard()) add(p.dim());
    }
  }
  for (int largest = 0; largest < 2; ++largest) {
    std::int64_t best = -1;
    for (std::size_t dim = 0; dim < geometry.sizes.size(); ++dim) {
      const bool known = std::find(dims_.begin(), dims_.end(), static_cast<std::int64_t>(dim)) != dims_.end();
      if (!known && (best < 0 || geometry.sizes[dim] > geometry.sizes[best])) best = static_cast<std::int64_t>(dim);
    }
    if (best >= 0 && dims_.size() < 2) add(best);
  }
}

std::vector<CandidateEdge> EdgeGenerator::edges_from(const Placements& at) const {
  std::vector<CandidateEdge> moves;
  const AxisMask partial = axes_where(at.size(), [&](std::size_t i) { return at[i].is_partial(); });
  const State state{at, SplitLayout(at, geometry_), moves, partial, partial_axes_to_reduce(at)};
  add_exchanges(state);
  add_gathers(state);
  add_slices(state);
  add_reductions(state);
  add_partials(state);
  return moves;
}

// Any subset of the non-partial axes changes to its goal placements together; axes whose goal is Partial are gathered.
void EdgeGenerator::add_exchanges(const State& state) const {
  Placements jump = goal_;
  for (Placement& p : jump) p = p.is_partial() ? Replicate() : p;
  const AxisMask moving = axes_where(jump.size(), [&](std::size_t i) {
    return !has_axis(state.partial, i) && jump[i] != state.at[i] && (!goal_[i].is_partial() || state.at[i].is_shard());
  });
  for (AxisMask some = moving; some != 0; some = (some - 1) & moving) {
    Placements to = state.at;
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = has_axis(some, i) ? jump[i] : to[i];
    if (at_most_one_ragged(to)) state.moves.push_back(exchange_edge(state.at, state.layout, to, geometry_));
  }
}

// A shard that is padded to a Partial must be the innermost one, so gather the shards nested inside it.
void EdgeGenerator::add_gathers(const State& state) const {
  bool padding = false;
  for (std::size_t i = 0; i < goal_.size(); ++i) padding |= goal_[i].is_partial() && state.at[i].is_shard();
  for (std::size_t i = 0; padding && i < goal_.size(); ++i) {
    if (!state.at[i].is_shard() || state.at[i] != goal_[i]) continue;
    Placements to = state.at;
    to[i] = Replicate();
    state.moves.push_back(exchange_edge(state.at, state.layout, to, geometry_));
  }
}

void EdgeGenerator::add_slices(const State& state) const {
  for (std::size_t i = 0; state.to_reduce != 0 && i < goal_.size(); ++i) {
    if (!state.at[i].is_replicate()) continue;
    for (const std::int64_t dim : dims_) {
      Placements to = state.at;
      to[i] = innermost_shard(to, i, dim, geometry_.mesh);
      if (refines(SplitLayout(to, geometry_), state.layout)) state.moves.push_back({EdgeKind::slice, bit(i), to, {}});
    }
  }
}

// The partial axes that must be reduced: those whose placement differs from the goal, and those nested inside a
// changing axis with which they do not commute.
AxisMask EdgeGenerator::partial_axes_to_reduce(const Placements& at) const {
  AxisMask changing = 0, partial = 0;
  for (std::size_t i = 0; i < goal_.size(); ++i) {
    bool changes = at[i] != goal_[i];
    for (std::size_t j = 0; j < i && at[i].is_partial(); ++j) {
      if (!has_axis(changing, j)) continue;
      changes |= at[j].is_partial() && !commute(at[j], at[i]);
      changes |= goal_[j].is_partial() && !commute(goal_[j], at[i]);
    }
    changing |= changes ? bit(i) : 0;
    partial |= at[i].is_partial() ? bit(i) : 0;
  }
  return changing & partial;
}

void EdgeGenerator::add_reductions(const State& state) const {
  for (AxisMask some = state.to_reduce; some != 0; some = (some - 1) & state.to_reduce) {
    if (!same_op(state.at, some) || !reorderable(state.at, state.at, some)) continue;
    Placements to = state.at;
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = has_axis(some, i) ? Replicate() : to[i];
    const std::int64_t elements = largest_part(state.layout, geometry_);
    state.moves.push_back({EdgeKind::all_reduce, some, std::move(to), all_reduce_cost(elements, some, geometry_)});
    add_reduce_scatters(state, some);
  }
}

// Each axis becomes its goal placement or a shard of one dimension: all combinations for two axes, the same choice for
// more.
void EdgeGenerator::add_reduce_scatters(const State& state, AxisMask axes) const {
  const auto choices = static_cast<std::int64_t>(dims_.size()) + 1;
  const bool combine = std::popcount(axes) == 2;
  const std::int64_t count = combine ? choices * choices : choices;
  for (std::int64_t choice = 0; choice < count; ++choice) {
    Placements to = state.at;
    bool possible = true;
    std::int64_t rest = choice;
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!has_axis(axes, i)) continue;
      const std::int64_t mine = rest % choices;
      if (combine) rest /= choices;
      possible &= mine > 0 || goal_[i].is_shard();
      to[i] = mine > 0 ? innermost_shard(to, i, dims_[mine - 1], geometry_.mesh) : goal_[i];
    }
    if (possible) add_reduce_scatter(state, axes, to);
  }
}

void EdgeGenerator::add_reduce_scatter(const State& state, AxisMask axes, const Placements& to) const {
  if (!at_most_one_ragged(to)) return;
  const SplitLayout layout(to, geometry_);
  if (!refines(layout, state.layout)) return;
  const EdgeCost cost = reduce_scatter_cost(largest_part(layout, geometry_), axes, geometry_);
  state.moves.push_back({EdgeKind::reduce_scatter, axes, to, cost});
}

// A shard becomes a Partial by padding with the identity of the reduction; an average has no identity.
void EdgeGenerator::add_partials(const State& state) const {
  const AxisMask open = axes_where(goal_.size(), [&](std::size_t i) {
    return goal_[i].is_partial() && !state.at[i].is_partial() &&
           (state.at[i].is_replicate() || !goal_[i].is_partial(ReduceOp::avg));
  });
  for (AxisMask some = open; some != 0; some = (some - 1) & open) {
    if (!same_op(goal_, some) || !reorderable(state.at, goal_, some)) continue;
    Placements to = state.at;
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = has_axis(some, i) ? goal_[i] : to[i];
    if (refines(state.layout, SplitLayout(to, geometry_))) {
      state.moves.push_back({EdgeKind::make_partial, some, std::move(to), {}});
    }
  }
}

}  // namespace dtensor
