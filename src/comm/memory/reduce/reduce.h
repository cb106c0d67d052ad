// Element-wise reduction of several sequences in the given order, so that every rank and backend computes the same
// bits. Half types accumulate in float and are rounded once.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "comm/memory/strided_runs.h"
#include "dtensor/placement.h"

namespace dtensor {

// The part of a flat sequence that one rank of an all_reduce reduces. Slices start at multiples of 64 elements, so
// that no two ranks write to one cache line.
struct ReduceSlice {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};
ReduceSlice reduce_slice_of(std::int64_t numel, int rank, int size);

// out[i] = op over k of in[k][i]; avg divides the sum by n. `out` may be in[k].
void reduce_contiguous(void* out, const void* const* in, int n, std::int64_t count, at::ScalarType dtype, ReduceOp op);

// Reduces elements [begin, end) of `sources` and writes the result to the same elements of every target. A target may
// be a source.
void reduce_views(c10::ArrayRef<FlatView> targets, c10::ArrayRef<FlatView> sources, std::int64_t begin,
                  std::int64_t end, at::ScalarType dtype, ReduceOp op);

}  // namespace dtensor
