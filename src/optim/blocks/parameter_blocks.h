// How a parameter is cut into blocks. Pure: sizes in, blocks out.
#pragma once

#include <ATen/core/DimVector.h>

#include <vector>

namespace dtensor::optim {

// Of a tensor's dimensions.
struct Region {
  at::DimVector begin, sizes;
};

struct Block {
  Region region;
  at::DimVector shape;  // region.sizes with dimensions merged and those of size 1 dropped; [1] if nothing is left
};

// Blocks of at most `block_size` along each dimension, in row-major order. Merging as in ShampooOptions.
std::vector<Block> split_into_blocks(at::IntArrayRef sizes, std::int64_t block_size, std::int64_t merge_to);

// The matrices [m, n] of a tensor [..., m, n], in row-major order.
std::vector<Block> matrices(at::IntArrayRef sizes);

}  // namespace dtensor::optim
