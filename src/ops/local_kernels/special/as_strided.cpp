// as_strided in terms of the global strides of a DTensor. If each dimension of the view steps along one dimension of
// the base, it runs as select, slice, permute and unsqueeze. A merge or split of dimensions runs as view. Any other
// view within a dense base is a view of the gathered base. A view outside of the base is an error on every rank.
#include <ATen/ops/expand.h>
#include <ATen/ops/permute.h>
#include <ATen/ops/select.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/view.h>

#include <algorithm>

#include "autograd/materialized_view.h"
#include "comm/memory/strided_runs.h"
#include "internal/simulated.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "placement/stride_order.h"
#include "redistribute/execute.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

struct Strided {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset;
};

// How the view steps along one dimension of the base: start, step and length. Without a view dimension it is a select.
struct Walk {
  std::int64_t start = 0, step = 1, length = 1;
  int view_dim = -1;
};

// The step along a base dimension that a stride of the view corresponds to; 0: none. For an expanded base dimension
// (stride 0) only stride 0 corresponds.
std::int64_t step_of(std::int64_t wanted, std::int64_t stride) {
  if (stride == 0) return wanted == 0 ? 1 : 0;
  return wanted % stride == 0 ? wanted / stride : 0;
}

bool find_walks(const at::Tensor& base, const Strided& want, std::vector<Walk>& walks) {
  walks.assign(static_cast<std::size_t>(base.dim()), Walk());
  std::int64_t offset = want.offset - base.storage_offset();
  if (offset < 0) return false;
  std::vector<bool> used(want.sizes.size());
  for (const auto d : memory_order(base)) {
    const auto stride = base.stride(d), size = base.size(d);
    auto& walk = walks[d];
    if (size > 1 && stride > 0) {
      walk.start = offset / stride;
      offset %= stride;
    }
    if (walk.start >= std::max<std::int64_t>(size, 1)) return false;
    for (std::size_t v = 0; v < want.sizes.size() && size > 1; ++v) {
      const auto step = step_of(want.strides[v], stride);
      const bool fits = !used[v] && want.sizes[v] > 1 && step >= 1 && walk.start + (want.sizes[v] - 1) * step < size;
      if (!fits) continue;
      used[v] = true;
      walk.step = step;
      walk.length = want.sizes[v];
      walk.view_dim = static_cast<int>(v);
      break;
    }
  }
  if (offset != 0) return false;
  for (std::size_t v = 0; v < used.size(); ++v) {
    if (!used[v] && want.sizes[v] != 1) return false;
  }
  return true;
}

at::Tensor take_walks(const at::Tensor& base, const Strided& want, const std::vector<Walk>& walks) {
  auto view = base;
  std::vector<int> view_dims;  // view dimension of each remaining base dimension
  for (int d = static_cast<int>(walks.size()) - 1; d >= 0; --d) {
    const auto& walk = walks[static_cast<std::size_t>(d)];
    if (walk.view_dim < 0) {
      view = view.select(d, walk.start);
      continue;
    }
    const auto end = walk.start + (walk.length - 1) * walk.step + 1;
    if (walk.start != 0 || walk.step != 1 || end != base.size(d)) view = view.slice(d, walk.start, end, walk.step);
    view_dims.insert(view_dims.begin(), walk.view_dim);
  }
  std::vector<std::int64_t> permutation(view_dims.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::sort(permutation.begin(), permutation.end(), [&](auto a, auto b) { return view_dims[a] < view_dims[b]; });
  if (!std::is_sorted(permutation.begin(), permutation.end())) view = view.permute(permutation);
  for (std::size_t v = 0; v < want.sizes.size(); ++v) {
    if (std::find(view_dims.begin(), view_dims.end(), static_cast<int>(v)) == view_dims.end()) {
      view = view.unsqueeze(static_cast<std::int64_t>(v));
    }
  }
  return view;
}

bool is_simple_view(const at::Tensor& base, const Strided& want) {
  std::int64_t numel = 1, step = 1;
  for (auto size : want.sizes) numel *= size;
  for (std::size_t v = want.sizes.size(); v-- > 0;) {
    if (want.sizes[v] != 1 && want.strides[v] != step) return false;
    step *= want.sizes[v];
  }
  return base.is_contiguous() && want.offset == base.storage_offset() && numel == base.numel();
}

bool stays_inside(const at::Tensor& base, const Strided& want) {
  if (!base.is_non_overlapping_and_dense()) return false;
  std::int64_t last = want.offset;
  for (std::size_t d = 0; d < want.sizes.size(); ++d) {
    if (want.sizes[d] == 0) return true;
    if (want.strides[d] < 0) return false;
    last += (want.sizes[d] - 1) * want.strides[d];
  }
  return want.offset >= base.storage_offset() && last < base.storage_offset() + base.numel();
}

at::Tensor view_of_full(const at::Tensor& base, const Strided& want) {
  auto* impl = as_dtensor(base.unsafeGetTensorImpl());
  const Placements replicate(impl->spec()->placements.size());
  const auto spec = with_placements(*impl->spec(), replicate);
  report_gather("as_strided", *impl->spec(), replicate);
  const auto full = to_stride_order(redistribute_local(up_to_date_local(*impl), *impl->spec(), replicate), *spec);
  const auto offset = want.offset - base.storage_offset();
  const auto part =
      full.defined() ? full.as_strided(want.sizes, want.strides, full.storage_offset() + offset) : at::Tensor();
  auto view =
      make_dtensor(intern_spec(spec->mesh, replicate, want.sizes, want.strides, spec->dtype), part, want.offset);
  auto* result = as_dtensor(view.unsafeGetTensorImpl());
  const bool materialized =
      full.defined() ? !shares_storage(full, impl->local()) : !find_plan(*impl->spec(), replicate)->empty();
  materialized ? result->materialize_view_of(*impl) : result->set_view_base(*impl);
  return view;
}

at::Tensor strided_view(const at::Tensor& base, const Strided& want) {
  if (base.sizes() == want.sizes && base.strides() == want.strides && want.offset == base.storage_offset()) {
    return base.alias();
  }
  if (std::vector<Walk> walks; find_walks(base, want, walks)) return take_walks(base, want, walks);
  if (is_simple_view(base, want)) return base.view(want.sizes);
  if (stays_inside(base, want)) return view_of_full(base, want);
  TORCH_CHECK(false, "as_strided of a DTensor: expected a view within a dense base, got sizes [",
              c10::Join(", ", want.sizes), "], strides [", c10::Join(", ", want.strides), "], offset ", want.offset,
              " of ", as_dtensor(base.unsafeGetTensorImpl())->spec()->str(), " with strides ", base.strides(),
              " and offset ", base.storage_offset(), "; use select, slice, permute or view");
}

}  // namespace

void as_strided_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const auto& base = torch::jit::peek(stack, 0, 4).toTensor();
  if (!has_dtensor_key(base.unsafeGetTensorImpl())) return entry.op.callBoxed(stack);
  const auto& offset = torch::jit::peek(stack, 3, 4);
  const Strided want{torch::jit::peek(stack, 1, 4).toIntVector(), torch::jit::peek(stack, 2, 4).toIntVector(),
                     offset.isNone() ? base.storage_offset() : offset.toInt()};
  TORCH_CHECK(want.sizes.size() == want.strides.size(), "as_strided: expected as many strides as sizes, got ",
              want.sizes.size(), " sizes and ", want.strides.size(), " strides");
  auto view = strided_view(base, want);
  torch::jit::drop(stack, 4);
  stack.emplace_back(std::move(view));
}

}  // namespace dtensor
