// Sums by the tree, level by level: additions of ATen, which are exact on every device.
#include "ops/local_kernels/bit_identical/tree.h"

namespace dtensor::bit_identical {
namespace {

// The nodes that remain of the leaves `rows`, the first of which is leaf `first` of the tree, as rows. Each level is a
// sum of tensors.
void add_levels(at::Tensor rows, std::int64_t first, std::int64_t leaves, std::vector<at::Tensor>& nodes) {
  std::vector<at::Tensor> right;  // nodes without their right siblings
  for (int level = 0; rows.size(0) > 0 && width_of(leaves, level) > 1; ++level, first = (first + 1) / 2) {
    const std::int64_t skipped = first % 2, pairs = (rows.size(0) - skipped) / 2, rest = skipped + 2 * pairs;
    if (skipped == 1) nodes.push_back(rows.narrow(0, 0, 1));
    at::Tensor last = rows.narrow(0, rest, rows.size(0) - rest);
    if (last.size(0) == 1 && first + rest + 1 < width_of(leaves, level)) {
      right.push_back(last);
      last = last.narrow(0, 0, 0);
    }
    const at::Tensor sums = at::add(rows.slice(0, skipped, rest, 2), rows.slice(0, skipped + 1, rest, 2));
    rows = last.size(0) == 0 ? sums : at::cat({sums, last});
  }
  if (rows.size(0) > 0) nodes.push_back(rows);
  nodes.insert(nodes.end(), right.rbegin(), right.rend());
}

}  // namespace

at::Tensor sum_levels(const at::Tensor& rows, const Leaves& leaves) {
  std::vector<at::Tensor> nodes;
  std::int64_t row = 0;
  for (const auto& s : leaves.own) {
    add_levels(rows.narrow(0, row, s.length), s.offset, leaves.count, nodes);
    row += s.length;
  }
  return complete(nodes.empty() ? rows.narrow(0, 0, 0) : at::cat(nodes), leaves);
}

}  // namespace dtensor::bit_identical
