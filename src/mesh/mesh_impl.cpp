// The communicators of a mesh, by axes.
#include "mesh/mesh_impl.h"

#include <c10/util/Exception.h>

#include <numeric>

#include "comm/record/call_history.h"
#include "comm/record/hash.h"
#include "comm/record/rank_record.h"
#include "internal/ranks/next_number.h"
#include "mesh/mesh_layout.h"
#include "mesh/world_state.h"

namespace dtensor {

MeshImpl::MeshImpl(MeshLayout layout, Communicator world, c10::DeviceType device, MeshRef compute_mesh,
                   std::shared_ptr<WorldState> state)
    : MeshInfo(std::move(layout), world.rank(), device, std::move(compute_mesh)),
      world_(std::move(world)),
      state_(std::move(state)),
      record_(backend_of(world_)->shared_record()),
      history_(std::make_shared<CallHistory>()),
      communicators_by_axes_(std::size_t{1} << this->layout.ndim()) {}

MeshImpl::~MeshImpl() = default;

const Communicator& MeshImpl::communicator(AxisMask axes) const {
  if (axes < communicators_by_axes_.size()) {
    if (const auto* known = communicators_by_axes_[axes].load(std::memory_order_acquire)) return *known;
  }
  return make_communicator(axes);
}

const Communicator& MeshImpl::make_communicator(AxisMask axes) const {
  TORCH_CHECK(is_member, "rank ", world_rank, " is not in ", str(), " and so has no communicator there");
  const auto ranks = line_ranks(layout, axes, coordinate);
  std::vector<std::int64_t> full_world(world_.size());
  std::iota(full_world.begin(), full_world.end(), 0);
  const auto label = axes_label(layout, axes);
  const auto shared = ranks == full_world ? world_ : state_->communicator(world_, ranks, label);
  const std::lock_guard lock(owned_communicators_mutex_);
  owned_communicators_.push_back(std::make_unique<Communicator>(with_call_history(shared.with_label(label), history_)));
  communicators_by_axes_[axes].store(owned_communicators_.back().get(), std::memory_order_release);
  return *owned_communicators_.back();
}

std::uint64_t MeshImpl::count(std::uint64_t kind) const {
  constexpr std::size_t kMostKinds = 8192;
  const std::lock_guard lock(count_mutex_);
  if (counts_.size() >= kMostKinds && counts_.count(kind) == 0) counts_.clear();
  return ++counts_[kind];
}

std::uint64_t next_number(const DeviceMesh& mesh, const std::string& kind) {
  return impl_of(mesh)->count(hash_of(kind));
}

void MeshImpl::release_resources() {
  owned_communicators_.clear();
  state_.reset();
  world_ = Communicator();
  compute_mesh_.reset();
}

std::string MeshImpl::str() const {
  const auto text = layout_str(layout, reported_device());
  return compute_mesh() != nullptr ? text + " offloaded" : text;
}

c10::intrusive_ptr<MeshImpl> intern_mesh(MeshLayout layout, const Communicator& world, c10::DeviceType device) {
  return WorldState::of(world)->intern(std::move(layout), world, device, {});
}

c10::intrusive_ptr<MeshImpl> intern_host_mesh(const c10::intrusive_ptr<MeshImpl>& mesh) {
  if (mesh->compute_mesh() != nullptr) return mesh;
  return mesh->state().intern(mesh->layout, mesh->world(), c10::DeviceType::CPU, mesh);
}

}  // namespace dtensor
