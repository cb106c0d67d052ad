// Linear layers of experts in a BitIdentical scope. The gradient of a weight is the tree over blocks of tokens of the
// batch, as that of a dense layer is; tokens that the expert does not have are absent. So microbatches compose.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtensor/moe/dispatch.h"
#include "dtensor/placement.h"
#include "moe/experts/experts.h"

namespace dtensor::moe {

// [experts, blocks]: how many rows each expert has of each block of tokens. Blocks end with each sequence of `length`
// tokens. This rank's tokens are in order. Collective over the ranks with other tokens.
at::Tensor rows_of_blocks(const Routing& routing, const DispatchPlan& plan, std::int64_t length,
                          const TokenLayout& layout);

// An expert's rows in each block, and how the ranks that hold the expert share them in the gradient of a weight.
struct RowBlocks {
  std::vector<std::int64_t> rows;
  Placement shard;  // Replicate where ranks have parts of one block
};
// `rows` [blocks]: an expert's row of rows_of_blocks(). `sizes`: rows of each rank, or of all if there is one size.
RowBlocks row_blocks(const at::Tensor& rows, const std::vector<std::int64_t>& sizes);

// x weight^T of DTensors x [rows, K] and weight [N, K] on one mesh, whose first axis may shard the rows. Differentiable
// once. If `again` is set, backward calls it for the weight instead of saving the weight.
at::Tensor linear_over_blocks(const at::Tensor& x, const at::Tensor& weight, const RowBlocks& blocks,
                              RegatherWeight again);

}  // namespace dtensor::moe
