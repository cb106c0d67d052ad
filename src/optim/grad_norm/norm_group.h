// Which ranks must put their shares of a norm together, and which of them counts a tensor, so that each logical element
// is counted once: a rank's part of a sharded tensor by that rank, a replicated part by one rank of those that hold it.
#pragma once

#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/tensor.h"

namespace dtensor::optim {

enum class CountedBy {
  other_rank,  // some other rank counts this part
  this_rank,   // this rank does
  every_rank   // every rank of the group holds the same and counts it after the exchange
};

// Built from the same tensors (as to meshes and placements) on every rank. At most one collective serves them all.
class NormGroup {
 public:
  // `callers`: the ranks that build it, if they are told; else those of all meshes, and the world for plain tensors.
  explicit NormGroup(at::TensorList tensors, const DeviceMesh& callers = {});
  NormGroup(const NormGroup&) = delete;
  NormGroup& operator=(const NormGroup&) = delete;

  // Spreads the counting of replicated parts by `index`.
  CountedBy counted_by(const at::Tensor& tensor, std::size_t index) const;
  // A tensor on a slice of the ranks of another tensor's mesh may be one tensor, which ranks outside hold as a handle,
  // or one on each of the slices (a router beside experts that are split over the other axis): only the exchange tells
  // how many copies there are. Such tensors have a number from 0 on, others -1.
  std::int64_t slice_copy_id(const at::Tensor& tensor) const;
  std::int64_t slice_copy_count() const { return slice_copies_; }
  // Whether this rank counts as the one that holds a copy of that number.
  bool counts_slice_copy(std::int64_t kind) const;
  // Whether this rank is in none of the meshes and so learns nothing.
  bool is_outside_all_meshes() const { return outside_all_meshes_; }
  bool has_regular_tensors() const { return has_regular_tensors_; }  // on every rank, if on one
  // The ranks that exchange; none where every rank has all that it needs.
  const Communicator& communicator() const { return communicator_; }

 private:
  struct Member {
    DeviceMesh mesh;
    std::vector<std::int64_t> coordinate;  // empty outside the mesh
    std::vector<bool> split;               // axes on which some tensor is sharded
    std::int64_t slice_copy_id = -1;
  };
  Member& member_of(const DeviceMesh& mesh);
  const Member* find(const DeviceMesh& mesh) const;
  bool same_ranks(const DeviceMesh& callers) const;
  void check_within(const DeviceMesh& callers) const;
  void choose_single_axis();
  void choose_all_ranks(bool regular, const DeviceMesh& callers);
  void find_slices(const DeviceMesh& callers);

  std::vector<Member> members_;
  Communicator communicator_;
  bool outside_all_meshes_ = false, has_regular_tensors_ = false;
  std::int64_t slice_copies_ = 0;
  // Where one axis of one mesh is all that is split: the exchange runs along it only.
  const Member* axis_member_ = nullptr;
  std::int64_t axis_ = -1;
};

}  // namespace dtensor::optim
