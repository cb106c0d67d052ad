// Finds the smallest set of ranks that must communicate.
#include "optim/grad_norm/norm_group.h"

#include <algorithm>

namespace dtensor::optim {
namespace {

std::vector<std::int64_t> sorted_ranks(const DeviceMesh& mesh) {
  std::vector<std::int64_t> ranks = mesh.ranks().vec();
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

NormGroup::NormGroup(at::TensorList tensors, const DeviceMesh& callers) {
  bool regular = false;
  for (const at::Tensor& tensor : tensors) {
    if (!is_dtensor(tensor)) {
      regular = regular || tensor.defined();
      continue;
    }
    const DTensor d(tensor);
    Member& member = member_of(d.mesh());
    const Placements& placements = d.placements();
    for (std::size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].is_shard() && member.mesh.size(static_cast<std::int64_t>(a)) > 1) member.split[a] = true;
    }
  }
  has_regular_tensors_ = regular;
  if (members_.empty()) return;
  const bool in_none =
      std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.coordinate.empty(); });
  outside_all_meshes_ = callers ? !callers.is_member() : !regular && in_none;
  if (outside_all_meshes_) return;
  if (same_ranks(callers) && !regular) {
    choose_single_axis();
  } else {
    choose_all_ranks(regular, callers);
    find_slices(callers);
  }
}

NormGroup::Member& NormGroup::member_of(const DeviceMesh& mesh) {
  if (const Member* found = find(mesh)) return const_cast<Member&>(*found);
  Member member{mesh, {}, std::vector<bool>(static_cast<std::size_t>(mesh.ndim()))};
  if (mesh.is_member()) member.coordinate = *mesh.coordinate();
  members_.push_back(std::move(member));
  return members_.back();
}

const NormGroup::Member* NormGroup::find(const DeviceMesh& mesh) const {
  for (const Member& member : members_) {
    if (impl_of(member.mesh) == impl_of(mesh) || member.mesh == mesh) return &member;
  }
  return nullptr;
}

bool NormGroup::same_ranks(const DeviceMesh& callers) const {
  const auto first = sorted_ranks(callers ? callers : members_.front().mesh);
  return std::all_of(members_.begin(), members_.end(), [&](const Member& m) { return sorted_ranks(m.mesh) == first; });
}

void NormGroup::check_within(const DeviceMesh& callers) const {
  const auto all = sorted_ranks(callers);
  for (const Member& member : members_) {
    const auto some = sorted_ranks(member.mesh);
    TORCH_CHECK(std::includes(all.begin(), all.end(), some.begin(), some.end()), "get_total_norm: a tensor is on ",
                member.mesh.str(), ", expected a mesh within the ranks of NormOptions::mesh, ", callers.str());
  }
}

// All ranks are in all meshes and there is nothing to compare: only sharded axes need communication.
void NormGroup::choose_single_axis() {
  std::int64_t axes = 0;
  for (const Member& member : members_) {
    for (std::size_t a = 0; a < member.split.size(); ++a) {
      if (!member.split[a]) continue;
      ++axes;
      axis_member_ = &member;
      axis_ = static_cast<std::int64_t>(a);
    }
  }
  if (axes == 1) {
    communicator_ = axis_member_->mesh.communicator(axis_);
    return;
  }
  axis_member_ = nullptr;
  if (axes > 1) communicator_ = members_.front().mesh.communicator();
}

// Ranks outside a mesh need its norms, too. Regular tensors are compared on all calling ranks: the world, unless
// `callers` is given.
void NormGroup::choose_all_ranks(bool regular, const DeviceMesh& callers) {
  const DeviceMesh& first = members_.front().mesh;
  if (callers) {
    check_within(callers);
    communicator_ = callers.communicator();
    return;
  }
  if (regular) {
    communicator_ = first.world();
    return;
  }
  std::vector<std::int64_t> all;
  for (const Member& member : members_) {
    const auto ranks = member.mesh.ranks();
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const auto count = static_cast<std::int64_t>(all.size());
  communicator_ = device_mesh(first.world(), first.device_type(), all, {count}, {"norm"}).communicator();
}

// All ranks find the same slices in the same order, whether they have their own slice or a handle of another one.
void NormGroup::find_slices(const DeviceMesh& callers) {
  std::vector<std::vector<std::int64_t>> ranks;
  for (const Member& member : members_) ranks.push_back(sorted_ranks(member.mesh));
  if (callers) ranks.push_back(sorted_ranks(callers));
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const bool inside = std::any_of(ranks.begin(), ranks.end(), [&](const auto& all) {
      return all.size() > ranks[i].size() && all.size() % ranks[i].size() == 0 &&
             std::includes(all.begin(), all.end(), ranks[i].begin(), ranks[i].end());
    });
    if (inside) members_[i].slice_copy_id = slice_copies_++;
  }
}

std::int64_t NormGroup::slice_copy_id(const at::Tensor& tensor) const {
  return is_dtensor(tensor) ? find(DTensor(tensor).mesh())->slice_copy_id : -1;
}

bool NormGroup::counts_slice_copy(std::int64_t kind) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
    return m.slice_copy_id == kind && !m.coordinate.empty() &&
           std::all_of(m.coordinate.begin(), m.coordinate.end(), [](auto c) { return c == 0; });
  });
}

CountedBy NormGroup::counted_by(const at::Tensor& tensor, std::size_t index) const {
  if (!is_dtensor(tensor) || !communicator_) return CountedBy::every_rank;
  const DTensor d(tensor);
  const Member& member = *find(d.mesh());
  const Placements& placements = d.placements();
  if (axis_member_ != nullptr) {
    const bool split = &member == axis_member_ && placements[static_cast<std::size_t>(axis_)].is_shard();
    return split ? CountedBy::this_rank : CountedBy::every_rank;
  }
  if (member.coordinate.empty()) return CountedBy::other_rank;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    const auto size = static_cast<std::size_t>(member.mesh.size(static_cast<std::int64_t>(a)));
    const auto counts = static_cast<std::int64_t>(index % size);
    if (!placements[a].is_shard() && member.coordinate[a] != counts) return CountedBy::other_rank;
  }
  return CountedBy::this_rank;
}

}  // namespace dtensor::optim
