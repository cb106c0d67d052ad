// Merges dimensions, then splits long ones. A merged dimension is never split, because it does not exceed block_size.
#include "optim/blocks/parameter_blocks.h"

#include <c10/util/accumulate.h>

#include <algorithm>

namespace dtensor::optim {
namespace {

// Adjacent dimensions that are merged.
struct Group {
  std::vector<std::size_t> dims;
  std::int64_t size = 1;
};

std::vector<Group> merge(at::IntArrayRef sizes, std::int64_t block_size, std::int64_t merge_to) {
  std::vector<Group> groups;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) groups.push_back({{d}, sizes[d]});
  }
  while (merge_to > 0 && groups.size() > static_cast<std::size_t>(merge_to)) {
    std::size_t best = 0;
    const auto product = [&](std::size_t i) { return groups[i].size * groups[i + 1].size; };
    for (std::size_t i = 1; i + 1 < groups.size(); ++i) best = product(i) < product(best) ? i : best;
    if (product(best) > block_size) break;
    auto& dims = groups[best].dims;
    groups[best].size = product(best);
    dims.insert(dims.end(), groups[best + 1].dims.begin(), groups[best + 1].dims.end());
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  return groups;
}

// Splits each block along one dimension.
std::vector<Block> split_along(const std::vector<Block>& blocks, const Group& group, std::int64_t block_size) {
  std::vector<Block> result;
  for (const Block& block : blocks) {
    if (group.dims.size() > 1) {
      result.push_back(block);
      result.back().shape.push_back(group.size);
      continue;
    }
    for (std::int64_t begin = 0; begin < group.size; begin += block_size) {
      Block part = block;
      const std::int64_t length = std::min(block_size, group.size - begin);
      part.region.dims[group.dims[0]] = {{begin, length}};
      part.shape.push_back(length);
      result.push_back(std::move(part));
    }
  }
  return result;
}

Block full(at::IntArrayRef sizes) {
  Block block;
  for (const std::int64_t size : sizes) block.region.dims.push_back({{0, size}});
  return block;
}

}  // namespace

std::vector<Block> split_into_blocks(at::IntArrayRef sizes, std::int64_t block_size, std::int64_t merge_to) {
  if (c10::multiply_integers(sizes) == 0) return {};
  std::vector<Block> blocks{full(sizes)};
  for (const Group& group : merge(sizes, block_size, merge_to)) blocks = split_along(blocks, group, block_size);
  for (Block& block : blocks) {
    if (block.shape.empty()) block.shape.push_back(1);
  }
  return blocks;
}

std::vector<Block> matrices(at::IntArrayRef sizes) {
  std::vector<Block> blocks{full(sizes)};
  for (std::size_t d = 0; d + 2 < sizes.size(); ++d) blocks = split_along(blocks, {{d}, sizes[d]}, 1);
  for (Block& block : blocks) block.shape = at::DimVector(sizes.slice(sizes.size() - 2));
  return blocks;
}

}  // namespace dtensor::optim
