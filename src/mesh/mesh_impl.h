// MeshInfo plus the communicators along the mesh's axes.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "dtensor/comm.h"
#include "placement/mesh_info.h"

namespace dtensor {

class CallHistory;
class RankRecord;
class WorldState;  // shared by all meshes of one rank's world communicator (mesh/world_state.h)

// Only intern_mesh creates instances, so equal pointers mean equal layouts.
class MeshImpl final : public MeshInfo {
 public:
  MeshImpl(MeshLayout layout, Communicator world, c10::DeviceType device, MeshRef compute_mesh,
           std::shared_ptr<WorldState> state);
  ~MeshImpl() override;

  // The communicator of the ranks that differ from this one in the given axes only, row-major by coordinate. The first
  // call creates it, collectively; later calls cost one load. Throws on ranks outside the mesh.
  const Communicator& communicator(AxisMask axes) const;
  const Communicator& world() const { return world_; }
  WorldState& state() const { return *state_; }

  std::string str() const;

  // This rank's recent calls; under Checked, also its calls on this mesh.
  RankRecord& record() const { return *record_; }
  CallHistory& history() const { return *history_; }

  // Counts the calls for this kind and returns the count, including this call. Equal on all ranks that make the same
  // calls. With too many kinds, all counts restart.
  std::uint64_t count(std::uint64_t kind) const;

  // Called by intrusive_ptr. The table of meshes keeps a dead mesh's memory for a while, which must not keep the world
  // alive.
  void release_resources() override;

 private:
  const Communicator& make_communicator(AxisMask axes) const;

  Communicator world_;
  std::shared_ptr<WorldState> state_;
  std::shared_ptr<RankRecord> record_;
  std::shared_ptr<CallHistory> history_;
  // Handles of the shared communicators, with labels of this mesh's axes.
  mutable std::vector<std::atomic<const Communicator*>> communicators_by_axes_;  // indexed by AxisMask
  mutable std::mutex count_mutex_;
  mutable std::unordered_map<std::uint64_t, std::uint64_t> counts_;
  mutable std::mutex owned_communicators_mutex_;
  mutable std::vector<std::unique_ptr<const Communicator>> owned_communicators_;  // owns the pointers above
};

// The interned mesh with this layout on this rank of the world. Thread-safe, no communication.
c10::intrusive_ptr<MeshImpl> intern_mesh(MeshLayout layout, const Communicator& world, c10::DeviceType device);
// The same layout in host memory, for tensors that `mesh` computes with. Returns `mesh` itself if its device is the
// CPU.
c10::intrusive_ptr<MeshImpl> intern_host_mesh(const c10::intrusive_ptr<MeshImpl>& mesh);

// Every MeshInfo that a DTensor refers to is a MeshImpl.
inline const MeshImpl& as_mesh_impl(const MeshInfo& mesh) { return static_cast<const MeshImpl&>(mesh); }

}  // namespace dtensor
