// Compares and restores the memory order of local tensors.
#include "placement/stride_order.h"
#include "internal/aten_scopes.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <numeric>

namespace dtensor {
namespace {

// Dimensions from the slowest to the fastest, without those of size 1.
c10::SmallVector<std::int64_t, 6> dimension_order(at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::SmallVector<std::int64_t, 6> order;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
    if (sizes[d] == 1) continue;
    // Insertion sort: std::stable_sort would allocate, which takes longer for a few dimensions.
    auto place = order.size();
    order.push_back(d);
    for (; place > 0 && strides[order[place - 1]] < strides[d]; --place) order[place] = order[place - 1];
    order[place] = d;
  }
  return order;
}

}  // namespace

bool has_dense_order(const TensorSpec& spec) {
  std::int64_t step = 1;
  const auto order = dimension_order(spec.sizes, spec.strides);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (spec.strides[*it] != step) return false;
    step *= spec.sizes[*it];
  }
  return true;
}

bool follows_order(const at::Tensor& local, const TensorSpec& spec) {
  if (local.numel() < 2) return true;
  std::int64_t step = 1, local_step = 1;
  bool gap = false;  // in the global strides since the last local dimension of size > 1
  const auto order = dimension_order(spec.sizes, spec.strides);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    gap = gap || spec.strides[*it] != step;
    step = spec.strides[*it] * spec.sizes[*it];
    if (local.size(*it) == 1) continue;
    if (!gap && local.stride(*it) != local_step) return false;
    local_step = local.stride(*it) * local.size(*it);
    gap = false;
  }
  return true;
}

at::Tensor to_stride_order(at::Tensor local, const TensorSpec& spec) {
  if (!local.defined() || follows_order(local, spec)) return local;
  at::DimVector strides(local.dim(), 1);
  std::int64_t step = 1;
  const auto order = dimension_order(spec.sizes, spec.strides);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    strides[*it] = step;
    step *= std::max<std::int64_t>(local.size(*it), 1);
  }
  // A MeshScope would make it a DTensor.
  const NoMeshScopeGuard regular;
  auto dense = at::empty_strided(local.sizes(), strides, local.options());
  return dense.copy_(local);
}

}  // namespace dtensor
