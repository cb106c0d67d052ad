// The edges that leave a placement state on the way to a goal: the graph in which the planner looks for a shortest
// path.
#pragma once

#include "redistribute/plan/cost.h"

namespace dtensor {

struct CandidateEdge {
  EdgeKind kind;
  AxisMask axes;
  Placements to;
  EdgePrice price;
};

// Any arrangement of shards and replicas to any other with the same partial axes, as one edge.
CandidateEdge exchange_edge(const Placements& from, const SplitLayout& from_layout, const Placements& to,
                            const TensorGeometry& geometry);

class EdgeGenerator {
 public:
  EdgeGenerator(const Placements& start, const Placements& goal, const TensorGeometry& geometry);
  std::vector<CandidateEdge> edges_from(const Placements& at) const;

 private:
  struct State;
  void add_exchanges(const State& state) const;
  void add_gathers(const State& state) const;
  void add_slices(const State& state) const;
  void add_reductions(const State& state) const;
  void add_reduce_scatters(const State& state, AxisMask axes) const;
  void add_reduce_scatter(const State& state, AxisMask axes, const Placements& to) const;
  void add_partials(const State& state) const;
  AxisMask partial_axes_to_reduce(const Placements& at) const;

  const Placements& goal_;
  const TensorGeometry& geometry_;
  // What intermediate states may shard: dimensions that start and goal shard; the longest, where these are below two.
  c10::SmallVector<std::int64_t, 4> dims_;
};

}  // namespace dtensor
