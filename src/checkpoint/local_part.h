// This rank's part of a tensor: its memory, where its elements lie in the whole, and which of them it answers for among
// the ranks that hold the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "internal/contiguous_ranges.h"

namespace dtensor::files {

using Range = ContiguousRanges::Range;

constexpr std::int64_t kBufferBytes = 4 << 20;

struct Part {
  at::Tensor local;  // undefined where this rank holds nothing
  ContiguousRanges ranges;
  std::int64_t begin = 0, end = 0;  // flat local elements that this rank answers for
  std::int64_t base = 0;            // the flat local element that `local` begins with: a copy has that share only

  std::int64_t element_bytes() const { return static_cast<std::int64_t>(local.element_size()); }
};

// What this rank holds of a tensor, by dimensions, and which one of the ranks that hold the same it is.
struct LocalShard {
  at::Tensor local = {};  // undefined: nothing
  std::vector<Segments> segments = {};
  std::int64_t replica = 0, replicas = 1;
};
LocalShard local_shard_of(const at::Tensor& tensor);  // nothing of an undefined one

// `position` in the list of all tensors spreads the work over ranks.
Part part_of(const at::Tensor& tensor, std::int64_t position);

// The tensor as it is written: Partial is reduced, and what would be very short ranges in the file is split along
// dimension 0 instead. Collective over its mesh where it is not the tensor itself.
at::Tensor prepare_for_write(const at::Tensor& tensor);

// Whether its elements lie in host memory one after the other, as they are in a file of that dtype.
bool is_contiguous_host_memory(const at::Tensor& local, at::ScalarType dtype);

// fn(part, first) for parts of at most so many elements that follow each other row-major, by sizes alone: alike on all
// ranks, whatever the strides.
using OnPart = std::function<void(const at::Tensor& part, std::int64_t first)>;
void split_by_sizes(const at::Tensor& full, std::int64_t most, const OnPart& fn, std::int64_t first = 0);

// fn(first, data, count) for pieces of the flat local elements [begin, end), row-major, on the host: the tensor's own
// memory where it is that, else copies of at most kBufferBytes.
using OnPiece = std::function<void(std::int64_t first, const char* data, std::int64_t count)>;
void for_each_piece(const at::Tensor& local, std::int64_t begin, std::int64_t end, const OnPiece& fn);

// The tensor whose memory is filled for `target`: itself, or a copy of a view that shares no memory with its base.
at::Tensor read_buffer_for(const at::Tensor& target);
// Once the read_buffer is filled: what was read arrives in the base too. Collective over the mesh of such a view.
void copy_from_read_buffer(const at::Tensor& target, const at::Tensor& read_buffer);

// After a tensor's memory was written: what autograd and the engine keep of it is out of date.
void mark_written(const at::Tensor& tensor);

}  // namespace dtensor::files
