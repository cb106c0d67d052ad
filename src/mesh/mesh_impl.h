// The acting half of a mesh: MeshInfo plus the communicators along its axes.
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

// Made by intern_mesh only, so that pointer equality is equality of layouts.
class MeshImpl final : public MeshInfo {
 public:
  MeshImpl(MeshLayout layout, Communicator world, c10::DeviceType device, MeshRef compute_mesh,
           std::shared_ptr<WorldState> state);
  ~MeshImpl() override;

  // The ranks that differ from this one in the given axes only, ordered row-major by coordinate. Made when first asked
  // for, which is collective over them; afterwards one load. Throws, naming rank and mesh, outside the mesh.
  const Communicator& communicator(AxisMask axes) const;
  const Communicator& world() const { return world_; }
  WorldState& state() const { return *state_; }

  std::string str() const;

  // Of this rank: what it did last, and under Checked its calls on this mesh.
  RankRecord& record() const { return *record_; }
  CallHistory& history() const { return *history_; }

  // How often this was asked of this kind, this time included: the same number on all ranks of the mesh that ask alike.
  // Kinds are bounded: beyond some thousands, all counts start again.
  std::uint64_t count(std::uint64_t kind) const;

  // Called by intrusive_ptr. The table of meshes keeps a dead mesh's memory for a while; it must not keep the world
  // alive.
  void release_resources() override;

 private:
  const Communicator& make_communicator(AxisMask axes) const;

  Communicator world_;
  std::shared_ptr<WorldState> state_;
  std::shared_ptr<RankRecord> record_;
  std::shared_ptr<CallHistory> history_;
  // Handles of the shared communicators, labelled with this mesh's axes.
  mutable std::vector<std::atomic<const Communicator*>> communicators_by_axes_;  // indexed by AxisMask
  mutable std::mutex count_mutex_;
  mutable std::unordered_map<std::uint64_t, std::uint64_t> counts_;
  mutable std::mutex owned_communicators_mutex_;
  mutable std::vector<std::unique_ptr<const Communicator>> owned_communicators_;  // owns them
};

// The one mesh with this layout on this rank of the world. Thread-safe, no communication.
c10::intrusive_ptr<MeshImpl> intern_mesh(MeshLayout layout, const Communicator& world, c10::DeviceType device);
// The same layout in host memory, for what `mesh` computes with; `mesh` itself where it is of CPUs, or is that already.
c10::intrusive_ptr<MeshImpl> intern_host_mesh(const c10::intrusive_ptr<MeshImpl>& mesh);

// Every MeshInfo that is reached from a DTensor is a MeshImpl.
inline const MeshImpl& as_mesh_impl(const MeshInfo& mesh) { return static_cast<const MeshImpl&>(mesh); }

}  // namespace dtensor
