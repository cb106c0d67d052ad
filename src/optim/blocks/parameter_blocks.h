// Splits a parameter into blocks. Pure functions of sizes.
#pragma once

#include <vector>

#include "internal/region.h"

namespace dtensor::optim {

struct Block {
  Region region;        // one range of each dimension
  at::DimVector shape;  // region.sizes() with merged dimensions and without those of size 1; [1] if none is left
};

// Blocks of at most `block_size` along each dimension, in row-major order. Merges dimensions as in ShampooOptions.
std::vector<Block> split_into_blocks(at::IntArrayRef sizes, std::int64_t block_size, std::int64_t merge_to);

// The matrices [m, n] of a tensor [..., m, n], in row-major order.
std::vector<Block> matrices(at::IntArrayRef sizes);

}  // namespace dtensor::optim
