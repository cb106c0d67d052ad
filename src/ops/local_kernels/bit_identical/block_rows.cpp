// Products that are contracted over rows whose number in each block depends on values, as those of experts do.
#include "internal/multiply_over_blocks.h"

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/microbatch_sums.h"
#include "ops/local_kernels/bit_identical/tiles.h"
#include "ops/local_kernels/local_args.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using bit_identical::Contracted;
using bit_identical::Leaves;

// The first row of each block. Blocks without rows at the end belong to the shard with the last row.
std::vector<std::int64_t> first_rows(at::IntArrayRef blocks, std::int64_t rows) {
  std::vector<std::int64_t> first;
  std::int64_t next = 0;
  for (const auto count : blocks) {
    first.push_back(std::min(next, rows - 1));
    next += count;
  }
  return first;
}

// The blocks that begin in some rows.
Segments blocks_of(const Segments& rows, const std::vector<std::int64_t>& first) {
  const auto at = [&](std::int64_t row) {
    return static_cast<std::int64_t>(std::lower_bound(first.begin(), first.end(), row) - first.begin());
  };
  Segments blocks;
  for (const Segment& s : rows) {
    const std::int64_t begin = at(s.offset), end = at(s.offset + s.length);
    if (end > begin) blocks.push_back({begin, end - begin});
  }
  return blocks;
}

Leaves leaves_of_blocks(const TensorSpec& spec, at::IntArrayRef blocks) {
  Leaves leaves;
  leaves.count = std::ssize(blocks);
  leaves.mesh = &as_mesh_impl(*spec.mesh);
  leaves.axes = shard_axes(&spec, {0});
  const auto first = first_rows(blocks, spec.sizes[0]);
  leaves.own = blocks_of(own_segments(&spec, 0, spec.sizes[0]), first);
  if (leaves.axes == 0) return leaves;
  for (const Segments& rows : segments_of_ranks(spec, 0, leaves.axes)) leaves.ranks.push_back(blocks_of(rows, first));
  return leaves;
}

Contracted contracted_rows(const TensorSpec& spec, at::IntArrayRef blocks) {
  Contracted k;
  k.leaves = leaves_of_blocks(spec, blocks);
  std::int64_t begin = 0;
  for (const Segment& s : k.leaves.own) {
    for (std::int64_t i = s.offset; i < s.offset + s.length; ++i) {
      k.ranges.push_back({i, begin, blocks[static_cast<std::size_t>(i)]});
      begin += k.ranges.back().length;
    }
  }
  TORCH_INTERNAL_ASSERT(begin == spec.local_sizes[0], "shards of rows end with blocks");
  return k;
}

}  // namespace

at::Tensor multiply_over_blocks(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef blocks) {
  const auto left = DTensor(a).to_local(), right = DTensor(b).to_local();
  const LocalBelowAutogradGuard guard;
  const TensorSpec& spec = *dtensor_or_null(a)->spec();
  note_batch_sum(std::ssize(blocks));
  if (spec.sizes[0] == 0) {
    return at::zeros({left.size(1), right.size(1)}, left.options().dtype(bit_identical::sum_type(left.scalar_type())));
  }
  return multiply(left.t(), right, contracted_rows(spec, blocks));
}

}  // namespace dtensor
