// This rank's part of a tensor: its memory, where its elements lie in the whole, and which of them it answers for among
// the ranks that hold the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "dtensor/contiguous_ranges.h"

namespace dtensor::files {

using Range = ContiguousRanges::Range;

constexpr std::int64_t kBufferBytes = 4 << 20;

struct Part {
  at::Tensor local;  // undefined where this rank holds nothing
  ContiguousRanges ranges;
  std::int64_t begin = 0, end = 0;  // flat local elements that this rank answers for
  std::int64_t base = 0;            // the flat local element that `local` begins with: a copy has that share only

  std::int64_t item() const { return static_cast<std::int64_t>(local.element_size()); }
};

// `position` in the list of all tensors spreads the work over ranks.
Part part_of(const at::Tensor& tensor, std::int64_t position);

// The tensor as it is written: Partial is reduced, and what would be very short ranges in the file is split along
// dimension 0 instead. Collective over its mesh where it is not the tensor itself.
at::Tensor to_be_written(const at::Tensor& tensor);

// fn(first, data, count) for pieces of the flat local elements [begin, end), row-major, on the host: the tensor's own
// memory where it is that, else a buffer of at most kBufferBytes in `dtype`, which is copied to the tensor afterwards
// where `write` says so, and filled from it before otherwise.
using OnPiece = std::function<void(std::int64_t first, char* data, std::int64_t count)>;
void for_each_piece(const at::Tensor& local, at::ScalarType dtype, std::int64_t begin, std::int64_t end, bool write,
                    const OnPiece& fn);

// The tensor whose memory is filled for `target`: itself, or a copy of a view that shares no memory with its base.
at::Tensor landing_of(const at::Tensor& target);
// Once the landing is filled: what was read arrives in the base too. Collective over the mesh of such a view.
void take_landing(const at::Tensor& target, const at::Tensor& landing);

// After a tensor's memory was written: what autograd and the engine keep of it is out of date.
void mark_written(const at::Tensor& tensor);

}  // namespace dtensor::files
