// Determines which ranks reduce a norm, and which rank counts a tensor, so that each logical element counts once. A
// shard is counted by its rank, a replicated part by one of its replicas.
#pragma once

#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/tensor.h"

namespace dtensor::optim {

enum class CountedBy {
  other_rank,  // another rank counts this part
  this_rank,   // this rank counts it
  every_rank   // all ranks of the group have the same part and add it after the reduction
};

// All ranks must pass the same tensors (with respect to meshes and placements). One collective at most is needed.
class NormGroup {
 public:
  // `callers`: the ranks that construct it. If undefined, the ranks of all meshes, or the world if there are regular
  // tensors.
  explicit NormGroup(at::TensorList tensors, const DeviceMesh& callers = {});
  NormGroup(const NormGroup&) = delete;
  NormGroup& operator=(const NormGroup&) = delete;

  // `index` distributes the counting of replicated parts over ranks.
  CountedBy counted_by(const at::Tensor& tensor, std::size_t index) const;
  // A tensor on a slice of another tensor's mesh may be a single tensor, with handles on ranks outside the slice. Or
  // each slice has a copy (a router next to sharded experts). Only communication shows the number of copies. Returns an
  // index for such tensors, -1 for others.
  std::int64_t slice_copy_id(const at::Tensor& tensor) const;
  std::int64_t slice_copy_count() const { return slice_copies_; }
  // Whether this rank counts the copy with this index.
  bool counts_slice_copy(std::int64_t kind) const;
  // Whether this rank is in none of the meshes and gets no norm.
  bool is_outside_all_meshes() const { return outside_all_meshes_; }
  bool has_regular_tensors() const { return has_regular_tensors_; }  // if on one rank, then on all
  // The ranks that communicate; undefined if each rank has everything it needs.
  const Communicator& communicator() const { return communicator_; }

 private:
  struct Member {
    DeviceMesh mesh;
    std::vector<std::int64_t> coordinate;  // empty outside the mesh
    std::vector<bool> split;               // axes on which any tensor is sharded
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
  // If only one axis of one mesh is sharded: communication along this axis only.
  const Member* axis_member_ = nullptr;
  std::int64_t axis_ = -1;
};

}  // namespace dtensor::optim
