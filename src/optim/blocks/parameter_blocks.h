// Splits a parameter into blocks. Pure functions of sizes.
#pragma once

#include <ATen/core/DimVector.h>

#include <vector>

namespace dtensor::optim {

// A rectangle: start and size by dimension.
struct Region {
  at::DimVector begin, sizes;
};

struct Block {
  Region region;
  at::DimVector shape;  // region.sizes with merged dimensions and without those of size 1; [1] if none is left
};

// Blocks of at most `block_size` along each dimension, in row-major order. Merges dimensions as in ShampooOptions.
std::vector<Block> split_into_blocks(at::IntArrayRef sizes, std::int64_t block_size, std::int64_t merge_to);

// The matrices [m, n] of a tensor [..., m, n], in row-major order.
std::vector<Block> matrices(at::IntArrayRef sizes);

}  // namespace dtensor::optim
