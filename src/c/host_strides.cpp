// Gaps and orders of dimensions in the arrays of all ranks become the global strides of one tensor.
#include "c/host_array.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace dtensor::c {
namespace {

struct HostLayout {
  at::IntArrayRef sizes, strides;
};

// Sizes and strides of each rank's array, as rows of the result.
at::Tensor gather_layouts(const Communicator& ranks, const at::Tensor& local) {
  const auto options = at::TensorOptions(at::kLong);
  auto mine = at::empty({2 * local.dim()}, options), all = at::empty({ranks.size(), 2 * local.dim()}, options);
  auto* numbers = mine.mutable_data_ptr<std::int64_t>();
  std::copy(local.strides().begin(), local.strides().end(),
            std::copy(local.sizes().begin(), local.sizes().end(), numbers));
  ranks.all_gather(all.unbind(0), mine).wait();
  return all;
}

HostLayout layout_of(const at::Tensor& all, std::int64_t rank) {
  const auto ndim = static_cast<std::size_t>(all.size(1) / 2);
  const auto* row = all.const_data_ptr<std::int64_t>() + rank * all.size(1);
  return {{row, ndim}, {row + ndim, ndim}};
}

// Dimensions from the fastest to the slowest.
std::vector<std::size_t> order_of(const HostLayout& layout) {
  std::vector<std::size_t> order(layout.sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return layout.strides[a] < layout.strides[b]; });
  return order;
}

// Adds the gaps of one rank's array in front of the dimensions; false if it does not have this order.
bool add_gaps(const HostLayout& layout, const std::vector<std::size_t>& order, std::vector<bool>& gaps) {
  if (c10::multiply_integers(layout.sizes) < 2) return true;
  std::int64_t step = 1;
  for (const std::size_t dim : order) {
    if (layout.sizes[dim] == 1) continue;
    if (layout.strides[dim] < step) return false;
    if (layout.strides[dim] > step) gaps[dim] = true;
    step = layout.strides[dim] * layout.sizes[dim];
  }
  return true;
}

}  // namespace

at::DimVector agree_host_strides(const Communicator& ranks, const at::Tensor& local, at::IntArrayRef global) {
  const at::Tensor all = gather_layouts(ranks, local);
  HostLayout largest = layout_of(all, 0);
  for (int rank = 1; rank < ranks.size(); ++rank) {
    const auto other = layout_of(all, rank);
    if (c10::multiply_integers(other.sizes) > c10::multiply_integers(largest.sizes)) largest = other;
  }
  const auto order = order_of(largest);
  std::vector<bool> gaps(global.size());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto layout = layout_of(all, rank);
    TORCH_CHECK_VALUE(add_gaps(layout, order, gaps), "expected arrays without overlapping elements and with one order ",
                      "of dimensions on all ranks, got strides ", layout.strides, " of sizes ", layout.sizes,
                      " on rank ", rank, ", and strides ", largest.strides, " of the largest array");
  }
  at::DimVector strides(global.size(), 1);
  std::int64_t step = 1;
  for (const std::size_t dim : order) {
    strides[dim] = step + (gaps[dim] ? 1 : 0);
    const bool fits = !__builtin_mul_overflow(strides[dim], std::max<std::int64_t>(global[dim], 1), &step);
    TORCH_CHECK_VALUE(fits, "expected global sizes of fewer than 2^63 elements, got ", global);
  }
  return strides;
}

}  // namespace dtensor::c
