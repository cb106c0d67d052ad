// Splits what each receiver lacks among its holders. A sender finds its parts by planning for each receiver.
#include "redistribute/plan/transfer.h"

#include <algorithm>
#include <map>

namespace dtensor {
namespace {

constexpr std::int64_t kSharedBytes = 1 << 16;  // below, another message costs more than it saves a sender

// Ranks that store the same part.
struct Replicas {
  Region part;
  std::vector<std::int64_t> ranks;  // world ranks
};

class Planner {
 public:
  Planner(at::IntArrayRef sizes, std::int64_t itemsize, const MeshPlacements& from, const MeshPlacements& to)
      : from_geometry_{sizes, from.mesh.shape, itemsize},
        to_geometry_{sizes, to.mesh.shape, itemsize},
        from_(from),
        to_(to),
        from_layout_(from.placements, from_geometry_),
        to_layout_(to.placements, to_geometry_) {
    for (std::int64_t i = 0; i < from.mesh.size(); ++i) add_holder(coordinate_of_index(from.mesh, i), i);
  }

  Region local_shard_of(std::int64_t rank) const {
    const auto coordinate = coordinate_of_rank(from_.mesh, rank);
    return coordinate ? region_of(from_layout_, from_geometry_, *coordinate) : Region();
  }
  Region wanted_by(std::int64_t rank) const {
    const auto coordinate = coordinate_of_rank(to_.mesh, rank);
    return coordinate ? region_of(to_layout_, to_geometry_, *coordinate) : Region();
  }

  // Calls visit(sender, part) for each part that the rank at `index` of the target mesh receives.
  template <class Visit>
  void for_each_part(std::size_t index, const Visit& visit) const {
    const std::int64_t rank = to_.mesh.ranks[index];
    const Region wanted = wanted_by(rank), held = local_shard_of(rank);
    const bool holds = coordinate_of_rank(from_.mesh, rank).has_value();
    for (const Region& lack : holds ? region_difference(wanted, held) : std::vector<Region>{wanted}) {
      for (const Replicas& replicas : replicas_)
        visit_shares(intersection(replicas.part, lack), index, replicas.ranks, visit);
    }
  }

 private:
  // Ranks that differ only along axes that split nothing are replicas of each other.
  void add_holder(Coordinate coordinate, std::int64_t index) {
    Region part = region_of(from_layout_, from_geometry_, coordinate);
    for (std::size_t a = 0; a < coordinate.size(); ++a) coordinate[a] *= from_.placements[a].is_shard();
    const auto [known, fresh] =
        known_.try_emplace(std::vector<std::int64_t>(coordinate.begin(), coordinate.end()), replicas_.size());
    if (fresh) replicas_.push_back({std::move(part), {}});
    replicas_[known->second].ranks.push_back(from_.mesh.ranks[static_cast<std::size_t>(index)]);
  }

  template <class Visit>
  void visit_shares(const Region& part, std::size_t index, const std::vector<std::int64_t>& ranks,
                    const Visit& visit) const {
    const std::int64_t bytes = part.numel() * to_geometry_.itemsize;
    if (bytes == 0) return;
    const auto senders = static_cast<std::int64_t>(ranks.size());
    const auto shares = split_region(part, std::clamp(bytes / kSharedBytes, std::int64_t{1}, senders));
    for (std::size_t k = 0; k < shares.size(); ++k) {
      if (shares[k].numel() > 0) visit(ranks[(index + k) % ranks.size()], shares[k]);
    }
  }

  TensorGeometry from_geometry_, to_geometry_;
  const MeshPlacements& from_;
  const MeshPlacements& to_;
  SplitLayout from_layout_, to_layout_;
  std::vector<Replicas> replicas_;
  std::map<std::vector<std::int64_t>, std::size_t> known_;  // index into replicas_, by coordinate
};

}  // namespace

TransferPlan plan_transfer(at::IntArrayRef sizes, std::int64_t itemsize, const MeshPlacements& from,
                           const MeshPlacements& to, std::int64_t world_rank) {
  const Planner planner(sizes, itemsize, from, to);
  TransferPlan plan;
  plan.held = planner.local_shard_of(world_rank);
  plan.wanted = planner.wanted_by(world_rank);
  const bool sends = coordinate_of_rank(from.mesh, world_rank).has_value();
  for (std::size_t i = 0; i < to.mesh.ranks.size(); ++i) {
    const std::int64_t receiver = to.mesh.ranks[i];
    if (receiver != world_rank && !sends) continue;
    planner.for_each_part(i, [&](std::int64_t sender, const Region& part) {
      if (receiver == world_rank) plan.receives.push_back({sender, part});
      if (sender == world_rank) plan.sends.push_back({receiver, part});
    });
  }
  return plan;
}

}  // namespace dtensor
