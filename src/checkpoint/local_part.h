// This rank's part of a tensor: its memory, the global position of its elements, and the elements that it owns among
// the ranks that hold the same part.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "internal/contiguous_ranges.h"

namespace dtensor::files {

using Range = ContiguousRanges::Range;

constexpr std::int64_t kBufferBytes = 4 << 20;

struct Part {
  at::Tensor local;  // undefined: nothing on this rank
  ContiguousRanges ranges;
  std::int64_t begin = 0, end = 0;  // flat local elements that this rank owns
  std::int64_t base = 0;  // first flat local element of `local`, for a copy that contains the owned elements only

  std::int64_t element_bytes() const { return static_cast<std::int64_t>(local.element_size()); }
};

// This rank's shard, by dimension, and its index among the ranks with the same shard.
struct LocalShard {
  at::Tensor local = {};  // undefined: nothing
  std::vector<Segments> segments = {};
  std::int64_t replica = 0, replicas = 1;
};
LocalShard local_shard_of(const at::Tensor& tensor);  // empty for an undefined tensor

// `position` is the index in the list of all tensors; it distributes the work over ranks.
Part part_of(const at::Tensor& tensor, std::int64_t position);

// The tensor as it is written: Partial is reduced, and tensors that would give very short ranges in the file are
// redistributed to Shard(0). Collective over its mesh unless it returns `tensor` itself.
at::Tensor prepare_for_write(const at::Tensor& tensor);

// Whether the elements are contiguous in host memory with this dtype.
bool is_contiguous_host_memory(const at::Tensor& local, at::ScalarType dtype);

// Calls fn(part, first) for row-major consecutive parts of at most `most` elements. The split depends on sizes only, so
// it is the same on all ranks regardless of strides.
using OnPart = std::function<void(const at::Tensor& part, std::int64_t first)>;
void split_by_sizes(const at::Tensor& full, std::int64_t most, const OnPart& fn, std::int64_t first = 0);

// Calls fn(first, data, count) for pieces of the flat local elements [begin, end), row-major, on the host: with the
// tensor's memory if possible, else with copies of at most kBufferBytes.
using OnPiece = std::function<void(std::int64_t first, const char* data, std::int64_t count)>;
void for_each_piece(const at::Tensor& local, std::int64_t begin, std::int64_t end, const OnPiece& fn);

// The tensor to read into for `target`: itself, or a copy if it is a view that does not share memory with its base.
at::Tensor read_buffer_for(const at::Tensor& target);
// Copies the filled read_buffer to `target` and its base. Collective over the mesh of such a view.
void copy_from_read_buffer(const at::Tensor& target, const at::Tensor& read_buffer);

// Invalidates state that autograd and the library derived from the tensor, after a write to its memory.
void mark_written(const at::Tensor& tensor);

}  // namespace dtensor::files
