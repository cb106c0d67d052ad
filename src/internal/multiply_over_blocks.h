// The gradient of a weight in a BitIdentical scope, if only some tokens of a batch have a row: those of an expert.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// a^T b for DTensors a [rows, m] and b [rows, n] with the same placements of rows: the tree over blocks of tokens, of
// which block i has blocks[i] rows; one without rows is zero. Shards end with blocks. Returns the local part over m and
// n, in float for half types. Collective over the ranks that shard the rows.
at::Tensor multiply_over_blocks(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef blocks);

}  // namespace dtensor
