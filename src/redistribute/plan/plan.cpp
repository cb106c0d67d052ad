// The interface of the planner: normalizes placements, caches plans, prints them.
#include "redistribute/plan/plan.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <unordered_map>

#include "placement/shard_map.h"
#include "redistribute/plan/search.h"

namespace dtensor {
namespace {

constexpr std::size_t kRemembered = 4096;  // plans per thread

struct Question {
  Placements from, to;
  at::DimVector sizes;
  c10::SmallVector<std::int64_t, 4> mesh;
  std::int64_t itemsize;
  friend bool operator==(const Question&, const Question&) = default;
};

struct QuestionHash {
  std::size_t operator()(const Question& q) const {
    std::size_t h = static_cast<std::size_t>(q.itemsize);
    const auto mix = [&h](std::size_t value) { h = (h ^ value) * 0x9E3779B97F4A7C15U + (h >> 29); };
    for (const Placement& p : q.from) mix(p.hash());
    for (const Placement& p : q.to) mix(p.hash());
    for (const std::int64_t n : q.sizes) mix(static_cast<std::size_t>(n));
    for (const std::int64_t n : q.mesh) mix(static_cast<std::size_t>(n));
    return h;
  }
};

// On an axis of one rank all placements are equivalent; normalize them to Replicate.
Question normal_form(const TensorSpec& from, const Placements& to) {
  const auto& mesh = from.mesh->layout.shape;
  Question q{from.placements, normalize_placements(to, from.dim(), mesh), from.sizes, {}, 0};
  q.mesh.append(mesh.begin(), mesh.end());
  q.itemsize = static_cast<std::int64_t>(c10::elementSize(from.dtype));
  for (std::size_t i = 0; i < q.to.size(); ++i) {
    q.to[i] = mesh[i] == 1 ? Replicate() : q.to[i].as_storage(false);
    q.from[i] = mesh[i] == 1 ? Replicate() : q.from[i].as_storage(false);
  }
  return q;
}

const char* to_string(EdgeKind kind) {
  switch (kind) {
    case EdgeKind::slice:
      return "slice";
    case EdgeKind::all_gather:
      return "all_gather";
    case EdgeKind::all_to_all:
      return "all_to_all";
    case EdgeKind::all_reduce:
      return "all_reduce";
    case EdgeKind::reduce_scatter:
      return "reduce_scatter";
    case EdgeKind::make_partial:
      return "make_partial";
  }
  return "?";
}

}  // namespace

PlanRef find_plan(const TensorSpec& from, const Placements& to) {
  thread_local std::unordered_map<Question, PlanRef, QuestionHash> remembered;
  Question q = normal_form(from, to);
  const auto found = remembered.find(q);
  if (found != remembered.end()) return found->second;
  auto plan = std::make_shared<const RedistributePlan>(search_plan(q.from, q.to, {q.sizes, q.mesh, q.itemsize}));
  if (remembered.size() >= kRemembered) remembered.clear();
  return remembered.emplace(std::move(q), std::move(plan)).first->second;
}

RedistributePlan plan_redistribute(const TensorSpec& from, const Placements& to) { return *find_plan(from, to); }

double redistribute_cost(const TensorSpec& from, const Placements& to) { return find_plan(from, to)->cost; }

std::string Edge::str() const {
  std::string over;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (axes >> i & 1) over += (over.empty() ? "" : ", ") + std::to_string(i);
  }
  return std::string(to_string(kind)) + " over {" + over + "}: " + to_string(from) + " -> " + to_string(to);
}

std::string RedistributePlan::str() const {
  std::string text;
  for (const Edge& edge : edges) text += edge.str() + "\n";
  return text;
}

}  // namespace dtensor
