// One all-to-all over the union of the meshes' ranks.
#include "redistribute/between_meshes.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "internal/aten_scopes.h"
#include "internal/bucketed_all_to_all.h"
#include "internal/dispatch_modes.h"
#include "mesh/mesh_impl.h"
#include "mesh/world_state.h"
#include "redistribute/edges/edge.h"
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

class MovingTensor {
 public:
  MovingTensor(const CrossMeshMove& move, std::int64_t world_rank)
      : plan_(plan_transfer(move.from->sizes, static_cast<std::int64_t>(c10::elementSize(move.from->dtype)),
                            {move.from->mesh->layout, move.from->placements},
                            {move.to->mesh->layout, move.to->placements}, world_rank)),
        local_(move.from->mesh->is_member ? resolve_conj_and_neg(move.local.to(move.to->mesh->device)) : at::Tensor()) {
    if (!move.to->mesh->is_member) return;
    const auto like = at::empty({0}, at::TensorOptions(move.to->dtype).device(move.to->mesh->device));
    result_ = result_buffer(move.to->local_sizes, like);
    if (!local_.defined()) return;
    const Region kept = intersection(plan_.held, plan_.wanted);
    if (kept.numel() > 0) write_part(result_, plan_.wanted, kept, read_part(local_, plan_.held, kept));
  }

  template <class PeerOf>
  void join(BucketedAllToAll& exchange, std::size_t bucket, const PeerOf& peer_of) {
    for (const Transfer& t : plan_.sends) exchange.send(bucket, peer_of(t.peer), read_part(local_, plan_.held, t.part));
    if (!result_.defined()) return;
    receives_.emplace(result_, plan_.wanted);
    for (const Transfer& t : plan_.receives) receives_->expect(t.part);
    for (std::size_t i = 0; i < plan_.receives.size(); ++i) {
      exchange.receive(bucket, peer_of(plan_.receives[i].peer), receives_->views()[i]);
    }
  }

  at::Tensor finish() {
    if (receives_) receives_->finish();
    return result_;
  }

 private:
  const TransferPlan plan_;
  const at::Tensor local_;
  at::Tensor result_;
  std::optional<PendingReceives> receives_;
};

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
  const auto peer_of = [&](std::int64_t rank) {
    return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  std::deque<MovingTensor> moving;
  for (const CrossMeshMove& move : moves) moving.emplace_back(move, self).join(exchange, bucket, peer_of);
  exchange.run();
  for (std::size_t i = 0; i < moves.size(); ++i) results[i] = moving[i].finish();
  return results;
}

}  // namespace dtensor
