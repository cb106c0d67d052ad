// Parts of tensors, and walks over their memory in pieces.
#include "checkpoint/part.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <limits>

#include "dtensor/tensor.h"
#include "dtensor/views.h"

namespace dtensor::files {
namespace {

constexpr std::int64_t kShortRange = 512;    // bytes; a system call costs more than moving them to another rank
constexpr std::int64_t kManyRows = 16;       // for each rank
constexpr std::int64_t kLeastShare = 16384;  // elements; below, sharing costs more than it saves

struct Replica {
  std::int64_t index = 0, count = 1;
};

// Among the ranks of a mesh that hold the same part.
Replica replica_of(const DTensor& tensor, at::IntArrayRef coordinate) {
  Replica replica;
  const DeviceMesh mesh = tensor.mesh();
  for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (tensor.placements()[a].is_shard()) continue;
    replica.index = replica.index * mesh.size(axis) + coordinate[a];
    replica.count *= mesh.size(axis);
  }
  return replica;
}

void share(Part& part, Replica replica, std::int64_t position) {
  const std::int64_t n = part.ranges.numel();
  const std::int64_t each = std::max((n + replica.count - 1) / replica.count, kLeastShare);
  const std::int64_t turn = (replica.index + position) % replica.count;
  part.begin = std::min(n, turn * each);
  part.end = std::min(n, part.begin + each);
}

// How long a range in the file is at most where the shards are even.
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

bool is_plain_memory(const at::Tensor& local, at::ScalarType dtype) {
  return local.is_cpu() && local.scalar_type() == dtype && local.is_contiguous() && !local.is_conj() && !local.is_neg();
}

// One buffer's worth: `block` has `count` elements, the first of which is local element `first`.
void through_buffer(const at::Tensor& block, at::ScalarType dtype, std::int64_t first, std::int64_t begin,
                    std::int64_t end, bool write, const OnPiece& fn) {
  const std::int64_t from = std::max(begin, first), to = std::min(end, first + block.numel());
  if (from >= to) return;
  const at::Tensor buffer = at::detail::empty_cpu(block.sizes(), dtype);  // unseen by a MeshScope
  const bool partly = to - from < block.numel();
  if (!write || partly) buffer.copy_(block);
  char* data = static_cast<char*>(buffer.mutable_data_ptr());
  fn(from, data + (from - first) * static_cast<std::int64_t>(buffer.element_size()), to - from);
  if (write) block.copy_(buffer);
}

void walk(const at::Tensor& block, at::ScalarType dtype, std::int64_t first, std::int64_t begin, std::int64_t end,
          bool write, const OnPiece& fn) {
  if (block.numel() == 0 || first >= end || first + block.numel() <= begin) return;
  const std::int64_t most = kBufferBytes / static_cast<std::int64_t>(c10::elementSize(dtype));
  if (block.dim() == 0 || block.numel() <= most) return through_buffer(block, dtype, first, begin, end, write, fn);
  const std::int64_t inner = block.numel() / block.size(0);
  if (inner > most) {
    for (std::int64_t i = 0; i < block.size(0); ++i)
      walk(block.select(0, i), dtype, first + i * inner, begin, end, write, fn);
    return;
  }
  const std::int64_t rows = most / inner;
  for (std::int64_t i = 0; i < block.size(0); i += rows) {
    const std::int64_t count = std::min(rows, block.size(0) - i);
    through_buffer(block.narrow(0, i, count), dtype, first + i * inner, begin, end, write, fn);
  }
}

}  // namespace

Part part_of(const at::Tensor& tensor, std::int64_t position) {
  const at::NoGradGuard no_grad;
  std::vector<Segments> held;
  if (!is_dtensor(tensor)) {
    for (const std::int64_t n : tensor.sizes()) held.push_back({{0, n}});
    Part part{tensor, ContiguousRanges(tensor.sizes(), std::move(held))};
    share(part, {}, position);
    return part;
  }
  const DTensor placed(tensor);
  const auto coordinate = placed.mesh().coordinate();
  if (!coordinate) return {{}, ContiguousRanges({0}, {{{0, 0}}})};
  for (std::int64_t d = 0; d < placed.dim(); ++d) {
    held.push_back(shard_segments(placed.size(d), d, placed.placements(), placed.mesh().shape(), *coordinate));
  }
  Part part{placed.to_local(), ContiguousRanges(placed.sizes(), std::move(held))};
  TORCH_CHECK(part.local.numel() == part.ranges.numel(), "the part of ", placed.spec_str(), " has ", part.local.numel(),
              " elements where ", part.ranges.numel(), " were expected");
  share(part, replica_of(placed, *coordinate), position);
  return part;
}

at::Tensor to_be_written(const at::Tensor& tensor) {
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

void for_each_piece(const at::Tensor& local, at::ScalarType dtype, std::int64_t begin, std::int64_t end, bool write,
                    const OnPiece& fn) {
  if (begin >= end) return;
  if (is_plain_memory(local, dtype)) {
    char* data = static_cast<char*>(write ? local.mutable_data_ptr() : const_cast<void*>(local.const_data_ptr()));
    fn(begin, data + begin * static_cast<std::int64_t>(local.element_size()), end - begin);
    return;
  }
  const at::NoGradGuard no_grad;
  walk(local.detach(), dtype, 0, begin, end, write, fn);
}

at::Tensor landing_of(const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  return is_materialised_view(target) ? target.detach().clone() : target;
}

void take_landing(const at::Tensor& target, const at::Tensor& landing) {
  const at::NoGradGuard no_grad;
  if (!landing.is_same(target)) target.copy_(landing);
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
