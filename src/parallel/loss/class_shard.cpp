// Finds the axes of the mesh that split the classes of a loss, and those that split its tokens.
#include "parallel/loss/class_shard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "internal/shard_segments.h"

namespace dtensor {
namespace {

void reduce_over(const DeviceMesh& mesh, const std::vector<std::int64_t>& axes, const at::Tensor& local, ReduceOp op) {
  for (const std::int64_t axis : axes) mesh.communicator(axis).all_reduce(local, op).wait();
}

}  // namespace

void ClassShard::reduce_classes(const at::Tensor& local, ReduceOp op) const {
  reduce_over(mesh, class_axes, local, op);
}
void ClassShard::reduce_tokens(const at::Tensor& local, ReduceOp op) const { reduce_over(mesh, token_axes, local, op); }

at::Tensor local_part(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  return is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor.detach();
}

at::Tensor to_placements(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements) {
  if (!is_dtensor(tensor)) return distribute_tensor(tensor, mesh, placements);
  TORCH_CHECK(DTensor(tensor).mesh() == mesh, "loss: operands on two meshes, ", DTensor(tensor).mesh().str(), " and ",
              mesh.str());
  return DTensor(tensor).redistribute(placements);
}

ClassShard class_shard(const DeviceMesh& mesh, std::int64_t count, const Placements& tokens,
                       const Placements& class_placements) {
  ClassShard shard{mesh, {}, {}, tokens, class_placements, count, 0, 0};
  for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (mesh.size(axis) == 1) continue;
    if (class_placements[static_cast<std::size_t>(axis)].is_shard()) shard.class_axes.push_back(axis);
    if (tokens[static_cast<std::size_t>(axis)].is_shard()) shard.token_axes.push_back(axis);
  }
  if (!mesh.is_member()) return shard;
  // From the placements: reading indices from a device would wait for it.
  const auto segments = shard_segments(count, 0, class_placements, mesh.shape(), *mesh.coordinate());
  for (const Segment& segment : segments) {
    if (segment.length == 0) continue;
    if (shard.own == 0) shard.first = segment.offset;
    TORCH_CHECK(segment.offset == shard.first + shard.own,
                "loss: expected consecutive classes on each rank, got placements ", to_string(class_placements), " of ",
                count, " classes");
    shard.own += segment.length;
  }
  return shard;
}

}  // namespace dtensor
