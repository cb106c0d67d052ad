// Lookup and maintenance of the per-world state. The registry keys are weak pointers, compared by control block, so
// that a new world at the address of a dead one is distinct. It is never destroyed, since communicators may be in use
// during static destruction.
#include "mesh/world_state.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "internal/ranks/separate_communicator.h"
#include "mesh/mesh_impl.h"

namespace dtensor {
namespace {

using Registry = std::map<std::weak_ptr<CommBackend>, std::shared_ptr<WorldState>, std::owner_less<>>;

// Entries that trigger a sweep; later twice the number of live meshes, so that sweeps cost amortized constant time.
constexpr std::size_t kSweepAt = 64;

std::mutex registry_mutex;

Registry& registry() {
  static auto* map = new Registry;
  return *map;
}

// Removes the states of expired worlds. The caller destroys them outside the lock, since this closes communicators.
std::vector<std::shared_ptr<WorldState>> remove_expired_meshes(Registry& worlds) {
  std::vector<std::shared_ptr<WorldState>> gone;
  for (auto it = worlds.begin(); it != worlds.end();) {
    if (it->first.expired()) {
      gone.push_back(std::move(it->second));
      it = worlds.erase(it);
    } else {
      ++it;
    }
  }
  return gone;
}

}  // namespace

std::shared_ptr<WorldState> WorldState::of(const Communicator& world) {
  TORCH_CHECK(world, "a mesh needs a world communicator");
  std::vector<std::shared_ptr<WorldState>> gone;
  const std::lock_guard lock(registry_mutex);
  auto& worlds = registry();
  auto it = worlds.find(backend_of(world));
  if (it == worlds.end()) {
    gone = remove_expired_meshes(worlds);
    it = worlds.emplace(backend_of(world), std::make_shared<WorldState>()).first;
  }
  return it->second;
}

c10::intrusive_ptr<MeshImpl> WorldState::intern(MeshLayout layout, const Communicator& world, c10::DeviceType device,
                                                MeshRef compute_mesh) {
  const int seen = compute_mesh ? static_cast<int>(compute_mesh->device) : -1;
  const Key key{layout.shape, layout.ranks, layout.names, static_cast<int>(device), seen};
  const std::lock_guard lock(mesh_mutex_);
  const auto it = meshes_.find(key);
  if (it != meshes_.end()) {
    if (auto mesh = it->second.lock()) return mesh;
    meshes_.erase(it);
  }
  if (meshes_.size() >= sweep_at_) {
    std::erase_if(meshes_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max(kSweepAt, 2 * meshes_.size());
  }
  auto mesh = c10::make_intrusive<MeshImpl>(std::move(layout), world, device, std::move(compute_mesh), of(world));
  meshes_.emplace(key, c10::weak_intrusive_ptr<MeshImpl>(mesh));
  return mesh;
}

Communicator WorldState::communicator(const Communicator& world, const std::vector<std::int64_t>& ranks,
                                      const std::string& label, const std::string& purpose) {
  const std::lock_guard lock(comm_mutex_);
  const std::pair key(ranks, purpose);
  const auto it = communicators_.find(key);
  if (it != communicators_.end()) return it->second;
  return communicators_.emplace(key, world.subgroup(ranks, label)).first->second;
}

Communicator separate_communicator(const DeviceMesh& mesh, const std::vector<std::int64_t>& ranks,
                                   const std::string& label, const std::string& purpose) {
  const Communicator world = mesh.world();
  return WorldState::of(world)->communicator(world, ranks, label, purpose).with_label(label);
}

RngState WorldState::rng() const {
  const std::lock_guard lock(rng_mutex_);
  return rng_;
}

void WorldState::set_rng(RngState state) {
  const std::lock_guard lock(rng_mutex_);
  rng_ = state;
}

RngState WorldState::advance_rng() {
  const std::lock_guard lock(rng_mutex_);
  RngState before = rng_;
  ++rng_.counter;
  return before;
}

}  // namespace dtensor
