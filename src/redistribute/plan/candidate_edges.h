// The edges from a placement state toward a goal: the graph in which the planner searches a shortest path.
#pragma once

#include "redistribute/plan/cost.h"

namespace dtensor {

struct CandidateEdge {
  EdgeKind kind;
  AxisMask axes;
  Placements to;
  EdgeCost cost;
};

// Converts any shards and replicas to any others with the same partial axes, as one edge.
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
  // The dimensions that intermediate states may shard: those of start and goal, and the longest ones up to two in
  // total.
  c10::SmallVector<std::int64_t, 4> dims_;
};

}  // namespace dtensor
