// Plans the cheapest sequence of edges between two lists of placements. Plans are values: comparable and printable.
// Execution is in redistribute/execute.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "placement/spec.h"

namespace dtensor {

enum class EdgeKind : std::uint8_t {
  slice,           // R -> S: local, no communication
  all_gather,      // S -> R
  all_to_all,      // S -> S over the ranks of `axes`: each rank sends only what the others lack
  all_reduce,      // P -> R
  reduce_scatter,  // P -> S
  make_partial,    // R or S -> P: local, no communication
};

struct Edge {
  EdgeKind kind;
  AxisMask axes;  // mesh dimensions that communicate together
  Placements from, to;
  friend bool operator==(const Edge&, const Edge&) = default;
  std::string str() const;  // all_gather over {1}: [S(0), S(1)] -> [S(0), R]
};

struct RedistributePlan {
  std::vector<Edge> edges;
  double cost = 0;               // seconds by the cost model
  std::int64_t bytes_moved = 0;  // received from other ranks by the busiest rank
  bool empty() const { return edges.empty(); }
  std::string str() const;  // one edge per line
};

// The cheapest plan. Deterministic: equal arguments give equal plans on every rank. Storage flags are ignored.
RedistributePlan plan_redistribute(const TensorSpec& from, const Placements& to);

// The same without a copy. Cached per thread.
using PlanRef = std::shared_ptr<const RedistributePlan>;
PlanRef find_plan(const TensorSpec& from, const Placements& to);

// Only the cost, for the choice of strategies. Cached per thread.
double redistribute_cost(const TensorSpec& from, const Placements& to);

}  // namespace dtensor
