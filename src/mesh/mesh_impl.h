// The acting half of a mesh: MeshInfo plus the communicators along its axes.
#pragma once

#include "dtensor/comm.h"
#include "placement/mesh_info.h"
#include "redistribute/plan.h"  // AxisMask

namespace dtensor {

struct WorldState;  // shared by all meshes of one rank's world communicator: interned meshes, communicators by rank set

class MeshImpl final : public MeshInfo {
 public:
  MeshImpl(MeshLayout layout, Communicator world, c10::DeviceType device);
  ~MeshImpl() override;

  // The ranks that differ from this one in the given axes only, ordered row-major by coordinate. Lazy.
  const Communicator& communicator(AxisMask axes) const;
  const Communicator& world() const { return world_; }

 private:
  Communicator world_;
  mutable std::vector<Communicator> by_mask_;  // indexed by AxisMask
};

// Every MeshInfo that is reached from a DTensor is a MeshImpl.
inline const MeshImpl& acting(const MeshInfo& mesh) { return static_cast<const MeshImpl&>(mesh); }

}  // namespace dtensor
