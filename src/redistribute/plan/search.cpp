// The planner: direct answers where one edge is known to be cheapest, else a shortest path.
#include "redistribute/plan/search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "redistribute/plan/candidate_edges.h"

namespace dtensor {
namespace {

struct PlacementsHash {
  std::size_t operator()(const Placements& placements) const {
    std::size_t h = placements.size();
    for (const Placement& p : placements) h = h * 0x9E3779B97F4A7C15U + p.hash();
    return h;
  }
};

// Breaks ties, which are common since local edges are free: prefers a slice and a gather to an all_to_all, and few
// edges to many.
int effort(EdgeKind kind) {
  switch (kind) {
    case EdgeKind::slice:
    case EdgeKind::make_partial:
      return 1;
    case EdgeKind::all_to_all:
      return 4;
    case EdgeKind::all_gather:
    case EdgeKind::all_reduce:
    case EdgeKind::reduce_scatter:
      return 2;
  }
  TORCH_INTERNAL_ASSERT(false);
}

class Search {
 public:
  Search(const Placements& from, const Placements& to, const TensorGeometry& geometry)
      : goal_(to), moves_(from, to, geometry) {
    reach(from, Node{0, 0, -1, {EdgeKind::slice, 0, from, {}}, false});
  }

  RedistributePlan run() {
    while (!queue_.empty()) {
      const std::size_t index = std::get<2>(queue_.top());
      queue_.pop();
      if (nodes_[index].done) continue;
      nodes_[index].done = true;
      if (nodes_[index].move.to == goal_) return path_to(index);
      expand(index);
    }
    TORCH_CHECK(false, "found no plan from ", to_string(nodes_[0].move.to), " to ", to_string(goal_));
  }

 private:
  struct Node {
    double cost;
    int effort;
    std::int64_t parent;
    CandidateEdge move;  // the edge that leads here
    bool done;
  };
  using Entry = std::tuple<double, int, std::size_t>;  // cost, effort, index in nodes_

  void expand(std::size_t index) {
    for (CandidateEdge& move : moves_.edges_from(nodes_[index].move.to)) {
      const double cost = nodes_[index].cost + move.cost.seconds;
      const int total = nodes_[index].effort + effort(move.kind);
      const Placements to = move.to;
      reach(to, Node{cost, total, static_cast<std::int64_t>(index), std::move(move), false});
    }
  }

  void reach(const Placements& state, Node node) {
    const auto [found, is_new] = index_.try_emplace(state, nodes_.size());
    if (is_new) {
      nodes_.push_back(std::move(node));
    } else {
      Node& old = nodes_[found->second];
      if (std::tie(old.cost, old.effort) <= std::tie(node.cost, node.effort)) return;
      old = std::move(node);
    }
    queue_.emplace(nodes_[found->second].cost, nodes_[found->second].effort, found->second);
  }

  RedistributePlan path_to(std::size_t index) const {
    RedistributePlan plan;
    plan.cost = nodes_[index].cost;
    for (const Node* node = &nodes_[index]; node->parent >= 0; node = &nodes_[node->parent]) {
      const CandidateEdge& move = node->move;
      plan.edges.push_back({move.kind, move.axes, nodes_[node->parent].move.to, move.to});
      plan.bytes_moved += move.cost.bytes;
    }
    std::reverse(plan.edges.begin(), plan.edges.end());
    return plan;
  }

  const Placements& goal_;
  EdgeGenerator moves_;
  std::vector<Node> nodes_;
  std::unordered_map<Placements, std::size_t, PlacementsHash> index_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

void append(RedistributePlan& plan, const Placements& from, CandidateEdge move) {
  plan.edges.push_back({move.kind, move.axes, from, std::move(move.to)});
  plan.cost += move.cost.seconds;
  plan.bytes_moved += move.cost.bytes;
}

// Partial axes do not change: one exchange gives every rank exactly what it lacks, so no detour is cheaper. If it is
// equivalent to a slice and a gather, the plan uses these, since a gather is the simpler collective.
RedistributePlan plan_exchange(const Placements& from, const Placements& to, const TensorGeometry& geometry) {
  RedistributePlan plan;
  CandidateEdge direct = exchange_edge(from, SplitLayout(from, geometry), to, geometry);
  if (direct.kind == EdgeKind::all_to_all) {
    Placements sliced = from;
    for (std::size_t i = 0; i < to.size(); ++i) sliced[i] = from[i].is_replicate() ? to[i] : from[i];
    const bool slices = sliced != from && at_most_one_ragged(sliced) &&
                        refines(SplitLayout(sliced, geometry), SplitLayout(from, geometry));
    if (slices) {
      CandidateEdge rest = exchange_edge(sliced, SplitLayout(sliced, geometry), to, geometry);
      if (rest.kind == EdgeKind::all_gather && rest.cost.seconds <= direct.cost.seconds) {
        append(plan, from, exchange_edge(from, SplitLayout(from, geometry), sliced, geometry));
        append(plan, sliced, std::move(rest));
        return plan;
      }
    }
  }
  append(plan, from, std::move(direct));
  return plan;
}

}  // namespace

RedistributePlan search_plan(const Placements& from, const Placements& to, const TensorGeometry& geometry) {
  if (from == to) return {};
  if (geometry.numel() == 0) {
    RedistributePlan relabel;
    relabel.edges.push_back({EdgeKind::slice, (AxisMask{1} << from.size()) - 1, from, to});
    return relabel;
  }
  bool partials_stay = true;
  for (std::size_t i = 0; i < from.size(); ++i) {
    partials_stay &= from[i] == to[i] || (!from[i].is_partial() && !to[i].is_partial());
  }
  return partials_stay ? plan_exchange(from, to, geometry) : Search(from, to, geometry).run();
}

}  // namespace dtensor
