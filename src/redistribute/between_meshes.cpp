// One all-to-all over the union of the meshes' ranks.
#include "redistribute/between_meshes.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "internal/aten_scopes.h"
#include "internal/dispatch_modes.h"
#include "internal/region_exchange.h"
#include "mesh/mesh_impl.h"
#include "mesh/world_state.h"
#include "redistribute/execute.h"
#include "redistribute/plan/transfer.h"
#include "redistribute/result_buffers.h"

namespace dtensor {
namespace {

std::vector<std::int64_t> ranks_of(const std::vector<CrossMeshMove>& moves) {
  std::vector<std::int64_t> ranks;
  for (const CrossMeshMove& move : moves) {
    for (const auto* spec : {&move.from, &move.to}) {
      const auto& more = (*spec)->mesh->layout.ranks;
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// kByte if the list has several dtypes. Equal on every rank, since all ranks have all specs.
at::ScalarType common_dtype(const std::vector<CrossMeshMove>& moves) {
  const auto first = moves.front().from->dtype;
  const bool same =
      std::all_of(moves.begin(), moves.end(), [&](const CrossMeshMove& m) { return m.from->dtype == first; });
  return same ? first : at::kByte;
}

// Peers are positions in `ranks`. Elements that this rank has and wants are a transfer to itself.
TransferPlan plan_of(const CrossMeshMove& move, std::int64_t self, const std::vector<std::int64_t>& ranks) {
  TransferPlan plan = plan_transfer(move.from->sizes, static_cast<std::int64_t>(c10::elementSize(move.from->dtype)),
                                    {move.from->mesh->layout, move.from->placements},
                                    {move.to->mesh->layout, move.to->placements}, self);
  if (move.from->mesh->is_member && move.to->mesh->is_member) {
    const Transfer kept{self, intersection(plan.held, plan.wanted)};
    plan.sends.push_back(kept);
    plan.receives.push_back(kept);
  }
  for (auto* transfers : {&plan.sends, &plan.receives}) {
    for (Transfer& t : *transfers) t.peer = std::lower_bound(ranks.begin(), ranks.end(), t.peer) - ranks.begin();
  }
  return plan;
}

RegionExchange exchange_of(const CrossMeshMove& move, TransferPlan plan) {
  at::Tensor local, result;
  if (move.from->mesh->is_member) local = resolve_conj_and_neg(move.local.to(move.to->mesh->device));
  if (move.to->mesh->is_member) {
    result = result_buffer(move.to->local_sizes,
                           at::empty({0}, at::TensorOptions(move.to->dtype).device(move.to->mesh->device)));
  }
  return RegionExchange(std::move(plan), local, std::move(result));
}

}  // namespace

std::vector<at::Tensor> move_between_meshes(const std::vector<CrossMeshMove>& moves) {
  if (moves.empty()) return {};
  const Communicator& world = as_mesh_impl(*moves.front().to->mesh).world();
  for (const CrossMeshMove& move : moves) {
    TORCH_CHECK(as_mesh_impl(*move.from->mesh).world() == world && as_mesh_impl(*move.to->mesh).world() == world,
                "redistribute: ", move.from->str(), " and ", move.to->str(),
                " are on meshes of different worlds; create both meshes from one communicator");
  }
  const auto ranks = ranks_of(moves);
  std::vector<at::Tensor> results(moves.size());
  const std::int64_t self = moves.front().to->mesh->world_rank;
  if (!std::binary_search(ranks.begin(), ranks.end(), self)) return results;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const NoMeshScopeGuard regular;
  const DisableDispatchModesGuard hidden;
  WorldState& state = as_mesh_impl(*moves.front().to->mesh).state();
  BucketedAllToAll exchange;
  const auto bucket = exchange.bucket(state.communicator(world, ranks, "meshes"), common_dtype(moves));
  std::vector<RegionExchange> moving;
  for (const CrossMeshMove& move : moves) {
    moving.push_back(exchange_of(move, plan_of(move, self, ranks)));
    moving.back().join(exchange, bucket);
  }
  exchange.run();
  for (std::size_t i = 0; i < moves.size(); ++i) results[i] = moving[i].finish();
  return results;
}

}  // namespace dtensor
