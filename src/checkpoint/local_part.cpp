// Local parts of tensors, and iteration over their memory in pieces.
#include "checkpoint/local_part.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "dtensor/tensor.h"
#include "internal/materialized_views.h"
#include "internal/wrapper_subclass.h"

namespace dtensor::files {
namespace {

constexpr std::int64_t kShortRange = 512;  // bytes; for shorter ranges a system call costs more than communication
constexpr std::int64_t kManyRows = 16;     // per rank
constexpr std::int64_t kMinShareElements = 16384;  // elements; for fewer, sharing costs more than it saves

void share(Part& part, const LocalShard& held, std::int64_t position) {
  const std::int64_t n = part.ranges.numel();
  const std::int64_t each = std::max((n + held.replicas - 1) / held.replicas, kMinShareElements);
  const std::int64_t turn = (held.replica + position) % held.replicas;
  part.begin = std::min(n, turn * each);
  part.end = std::min(n, part.begin + each);
}

// Upper bound of the length of a range in the file, for even shards.
std::int64_t range_bytes(const DTensor& tensor) {
  std::int64_t last = -1, parts = 1, inner = static_cast<std::int64_t>(tensor.element_size());
  for (const Placement& p : tensor.placements()) last = std::max(last, p.dim());
  if (last < 0) return std::numeric_limits<std::int64_t>::max();
  for (std::int64_t axis = 0; axis < tensor.mesh().ndim(); ++axis) {
    const Placement& p = tensor.placements()[static_cast<std::size_t>(axis)];
    if (p.is_shard(last)) parts *= tensor.mesh().size(axis);
  }
  for (std::int64_t d = last + 1; d < tensor.dim(); ++d) inner *= tensor.size(d);
  return (tensor.size(last) + parts - 1) / parts * inner;
}

}  // namespace

LocalShard local_shard_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  LocalShard held;
  if (!tensor.defined()) return held;
  if (!is_dtensor(tensor)) {
    held.local = tensor.detach();
    for (const std::int64_t n : tensor.sizes()) held.segments.push_back({{0, n}});
    return held;
  }
  const DTensor placed(tensor);
  const DeviceMesh mesh = placed.mesh();
  const auto coordinate = mesh.coordinate();
  if (!coordinate) return held;
  held.local = placed.to_local();
  check_is_no_wrapper(held.local, "checkpoint");
  for (std::int64_t d = 0; d < placed.dim(); ++d) {
    held.segments.push_back(shard_segments(placed.size(d), d, placed.placements(), mesh.shape(), *coordinate));
  }
  for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (placed.placements()[a].is_shard()) continue;
    held.replica = held.replica * mesh.size(axis) + (*coordinate)[a];
    held.replicas *= mesh.size(axis);
  }
  return held;
}

Part part_of(const at::Tensor& tensor, std::int64_t position) {
  LocalShard held = local_shard_of(tensor);
  if (!held.local.defined()) return {{}, ContiguousRanges({0}, {{{0, 0}}})};
  Part part{held.local, ContiguousRanges(tensor.sizes(), std::move(held.segments))};
  TORCH_CHECK(part.local.numel() == part.ranges.numel(), "the part of ",
              is_dtensor(tensor) ? DTensor(tensor).spec_str() : "a tensor", " has ", part.local.numel(),
              " elements where ", part.ranges.numel(), " were expected");
  share(part, held, position);
  return part;
}

at::Tensor prepare_for_write(const at::Tensor& tensor) {
  if (!is_dtensor(tensor) || !DTensor(tensor).mesh().is_member()) return tensor;
  const DTensor given(tensor);
  Placements placements = given.placements();
  const bool rows =
      given.dim() > 1 && range_bytes(given) < kShortRange && given.size(0) >= kManyRows * given.mesh().size();
  for (Placement& p : placements) {
    if (p.is_partial()) p = Replicate();
    if (rows && p.is_shard() && p.dim() > 0) p = Shard(0);
  }
  const at::NoGradGuard no_grad;
  return placements == given.placements() ? tensor : given.redistribute(std::move(placements));
}

bool is_contiguous_host_memory(const at::Tensor& local, at::ScalarType dtype) {
  return local.is_cpu() && local.scalar_type() == dtype && local.is_contiguous() && !local.is_conj() && !local.is_neg();
}

void split_by_sizes(const at::Tensor& full, std::int64_t most, const OnPart& fn, std::int64_t first) {
  if (full.dim() == 0 || full.numel() <= most) return fn(full, first);
  const std::int64_t inner = full.numel() / full.size(0), rows = std::max<std::int64_t>(1, most / inner);
  for (std::int64_t row = 0; row < full.size(0); row += rows) {
    if (inner > most) {
      split_by_sizes(full.select(0, row), most, fn, first + row * inner);
    } else {
      fn(full.narrow(0, row, std::min(rows, full.size(0) - row)), first + row * inner);
    }
  }
}

void for_each_piece(const at::Tensor& local, std::int64_t begin, std::int64_t end, const OnPiece& fn) {
  if (begin >= end) return;
  const auto item = static_cast<std::int64_t>(local.element_size());
  if (is_contiguous_host_memory(local, local.scalar_type())) {
    return fn(begin, static_cast<const char*>(local.const_data_ptr()) + begin * item, end - begin);
  }
  const at::NoGradGuard no_grad;
  split_by_sizes(local.detach(), kBufferBytes / item, [&](const at::Tensor& block, std::int64_t first) {
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + block.numel());
    if (from >= to) return;
    const at::Tensor buffer = at::detail::empty_cpu(block.sizes(), block.scalar_type());  // not affected by a MeshScope
    buffer.copy_(block);
    fn(from, static_cast<const char*>(buffer.const_data_ptr()) + (from - first) * item, to - from);
  });
}

at::Tensor read_buffer_for(const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  return is_materialized_view(target) ? target.detach().clone() : target;
}

void copy_from_read_buffer(const at::Tensor& target, const at::Tensor& read_buffer) {
  const at::NoGradGuard no_grad;
  if (!read_buffer.is_same(target)) target.copy_(read_buffer);
}

void mark_written(const at::Tensor& tensor) {
  const auto bump = [](const at::Tensor& t) {
    if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  };
  bump(tensor);
  if (!is_dtensor(tensor) || !DTensor(tensor).mesh().is_member()) return;
  const at::NoGradGuard no_grad;
  bump(DTensor(tensor).to_local());
}

}  // namespace dtensor::files
