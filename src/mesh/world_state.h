// The state shared by all meshes of one rank's world communicator: the interned meshes, the communicators by rank
// list, and the random state. Found by the world's backend object, which belongs to one rank, and destroyed with it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/random.h"
#include "placement/mesh_info.h"

namespace dtensor {

class MeshImpl;

class WorldState {
 public:
  // The state of this rank's world.
  static std::shared_ptr<WorldState> of(const Communicator& world);

  c10::intrusive_ptr<MeshImpl> intern(MeshLayout layout, const Communicator& world, c10::DeviceType device,
                                      MeshRef compute_mesh);

  // The communicator of these ranks of the world, in this order; this rank is one of them. The first call creates it,
  // collectively; `label` names it in messages. A communicator with a purpose is separate from the others.
  Communicator communicator(const Communicator& world, const std::vector<std::int64_t>& ranks, const std::string& label,
                            const std::string& purpose = {});

  RngState rng() const;
  void set_rng(RngState state);
  // Returns the current state and advances it by one random operator.
  RngState advance_rng();

 private:
  using Key = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::vector<std::string>, int, int>;

  mutable std::mutex rng_mutex_;
  RngState rng_{67280421310721ULL, 0};  // ATen's default seed
  std::mutex mesh_mutex_;
  std::map<Key, c10::weak_intrusive_ptr<MeshImpl>> meshes_;  // weak: a mesh owns this state
  std::size_t sweep_at_ = 0;                                 // size of meshes_ at which expired entries are removed
  std::mutex comm_mutex_;  // held during creation: two threads of a rank must not create a communicator twice
  std::map<std::pair<std::vector<std::int64_t>, std::string>, Communicator> communicators_;  // by ranks and purpose
};

}  // namespace dtensor
