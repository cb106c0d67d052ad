// One matrix product per expert for rows sorted by expert: three backends with the same gradient.
#include <ATen/ATen.h>

#include "internal/autocast.h"
#include "internal/kernels/gpu_kernels.h"
#include "moe/dispatch/permute.h"
#include "moe/experts/experts.h"
#include "moe/local_function.h"
#include "moe/row_kernels.h"

namespace dtensor {
namespace {

using moe::Node;
using moe::SavedVariable;
using moe::variable_list;
using Rows = std::vector<std::int64_t>;

struct Operands {
  at::Tensor x, weight;
  RegatherWeight again;
};

Operands as_autocast(const at::Tensor& x, const at::Tensor& weight, RegatherWeight again) {
  if (!at::autocast::is_autocast_enabled(x.device().type())) return {x, weight, std::move(again)};
  Operands cast{cast_as_autocast(x), cast_as_autocast(weight), {}};
  if (again) cast.again = [again, to = cast.weight.scalar_type()] { return again().to(to); };
  return cast;
}

ExpertBackend settle(ExpertBackend backend, at::IntArrayRef rows) {
  if (backend == ExpertBackend::automatic) return moe::all_equal(rows) ? ExpertBackend::batched : ExpertBackend::loop;
  if (backend == ExpertBackend::grouped) return ExpertBackend::loop;  // without rows
  TORCH_CHECK(backend != ExpertBackend::batched || moe::all_equal(rows),
              "grouped_mm: the batched backend expects the same number of rows for each expert, got ", rows);
  return backend;
}

// [E * n, d] to [E, n, d]
at::Tensor batched(const at::Tensor& x, at::IntArrayRef rows) {
  return x.view({static_cast<std::int64_t>(rows.size()), rows[0], x.size(1)});
}

// Calls fn(expert, first row, rows).
template <class Fn>
void each_expert(at::IntArrayRef rows, const Fn& fn) {
  std::int64_t first = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    fn(static_cast<std::int64_t>(e), first, rows[e]);
    first += rows[e];
  }
}

// x[rows of e] * weight[e], weight [E, K, N] with any strides.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef rows, ExpertBackend backend) {
  if (backend == ExpertBackend::batched) return at::bmm(batched(x, rows), weight).view({x.size(0), weight.size(2)});
  auto result = at::empty({x.size(0), weight.size(2)}, x.options());
  each_expert(rows, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    auto out = result.narrow(0, first, count);
    at::mm_out(out, x.narrow(0, first, count), weight.select(0, e));
  });
  return result;
}

// grad[rows of e]^T * x[rows of e]: [E, N, K].
at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef rows, ExpertBackend backend) {
  if (backend == ExpertBackend::batched) return at::bmm(batched(grad, rows).transpose(1, 2), batched(x, rows));
  auto result = at::empty({static_cast<std::int64_t>(rows.size()), grad.size(1), x.size(1)}, x.options());
  each_expert(rows, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    auto out = result.select(0, e);
    if (count == 0) {
      out.zero_();
    } else {
      at::mm_out(out, grad.narrow(0, first, count).t(), x.narrow(0, first, count));
    }
  });
  return result;
}

struct GroupedMmBackward final : Node {
  GroupedMmBackward(const at::Tensor& x_, const at::Tensor& w, Rows r, ExpertBackend b, RegatherWeight a)
      : x(x_, false), weight(a ? at::Tensor() : w, false), rows(std::move(r)), backend(b), again(std::move(a)) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "grouped_mm does not support double backward; use separate experts (run_experts with a list)");
    const LocalBelowAutogradGuard guard;
    const auto grad = grads[0].contiguous();
    const auto from = x.unpack();
    at::Tensor dx, dw;
    if (task_should_compute_output(0)) dx = multiply(grad, again ? again() : weight.unpack(), rows, backend);
    if (task_should_compute_output(1)) dw = weight_gradient(grad, from.contiguous(), rows, backend);
    return {dx, dw};
  }
  void release_variables() override {
    x.reset_data();
    weight.reset_data();
  }
  std::string name() const override { return "GroupedMmBackward"; }
  SavedVariable x, weight;
  Rows rows;
  ExpertBackend backend;
  RegatherWeight again;
};

struct AlignedMmBackward final : Node {
  AlignedMmBackward(const at::Tensor& x_, const at::Tensor& w, AlignedGroups g, RegatherWeight a)
      : x(x_, false), weight(a ? at::Tensor() : w, false), groups(std::move(g)), again(std::move(a)) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "grouped_mm does not support double backward; use separate experts (run_experts with a list)");
    const LocalBelowAutogradGuard guard;
    const auto grad = grads[0].contiguous();
    at::Tensor dx, dw;
    if (task_should_compute_output(0)) dx = at::_grouped_mm(grad, again ? again() : weight.unpack(), groups.ends);
    if (task_should_compute_output(1)) {
      dw = at::_grouped_mm(grad.t(), x.unpack().contiguous(), groups.ends);
      dw.masked_fill_((groups.counts == 0).view({-1, 1, 1}), 0);  // _grouped_mm does not write empty groups
    }
    return {dx, dw};
  }
  void release_variables() override {
    x.reset_data();
    weight.reset_data();
  }
  std::string name() const override { return "AlignedMmBackward"; }
  SavedVariable x, weight;
  AlignedGroups groups;
  RegatherWeight again;
};

// Whether at::_grouped_mm takes a weight [E, N, K] in bfloat16 and its transpose.
bool has_aligned_rows(const at::Tensor& weight) {
  constexpr std::int64_t kBytes = 16, kElements = kBytes / 2;
  return weight.is_contiguous() && weight.size(1) % kElements == 0 && weight.size(2) % kElements == 0 &&
         reinterpret_cast<std::uintptr_t>(weight.const_data_ptr()) % kBytes == 0;
}

}  // namespace

bool moe::prefers_grouped(const at::Tensor& x, const ExpertWeights& w, const ExpertOptions& options) {
  const auto device = x.device().type();
  const auto dtype =
      at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
  return options.backend == ExpertBackend::automatic && dtype == at::kBFloat16 &&
         takes_gpu_kernel(GpuKernel::grouped_experts, device) && moe::multiplies_groups(x) && has_aligned_rows(w.w1) &&
         has_aligned_rows(w.w2) && (!w.w3.defined() || has_aligned_rows(w.w3));
}

AlignedGroups align_groups(const at::Tensor& counts, std::int64_t rows, std::int64_t alignment) {
  TORCH_CHECK(alignment >= 1 && counts.dim() == 1, "align_groups: expected 1-D counts and alignment >= 1, got counts ",
              counts.sizes(), ", alignment ", alignment);
  const NoMeshScopeGuard regular;
  const auto ends = counts.cumsum(0);
  if (alignment == 1) return {counts, {}, ends.to(at::kInt), rows};
  const auto padded_ends = counts.add(alignment - 1).div(alignment, "floor").mul(alignment).cumsum(0);
  const auto row = at::arange(rows, counts.options());
  const auto group = at::bucketize(row, ends, false, /*right=*/true);
  const auto shift = (padded_ends - ends).roll(1);  // padding of the preceding groups; 0 for the first group
  AlignedGroups result;
  result.counts = counts;
  result.place = row + at::where(group > 0, shift.index_select(0, group), 0);
  result.ends = padded_ends.to(at::kInt);
  const auto bound = rows + counts.size(0) * (alignment - 1);
  result.rows = (bound + alignment - 1) / alignment * alignment;
  return result;
}

at::Tensor AlignedGroups::pad(const at::Tensor& x) const {
  return place.defined() ? permute_tokens(x, place.unsqueeze(1), rows) : x;
}

at::Tensor AlignedGroups::unpad(const at::Tensor& y) const {
  return place.defined() ? unpermute_tokens(y, place.unsqueeze(1)) : y;
}

at::Tensor grouped_mm(const at::Tensor& rows, const at::Tensor& weights, const AlignedGroups& groups,
                      RegatherWeight gather) {
  TORCH_CHECK(rows.dim() == 2 && weights.dim() == 3 && rows.size(1) == weights.size(2) && rows.size(0) == groups.rows &&
                  weights.size(0) == groups.counts.size(0),
              "grouped_mm: rows ", rows.sizes(), ", weights ", weights.sizes(), " and ", groups.counts.size(0),
              " groups in ", groups.rows, " rows do not match");
  auto [x, weight, again] = as_autocast(rows, weights, std::move(gather));
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = at::_grouped_mm(x.contiguous(), weight.transpose(1, 2), groups.ends);
  }
  if (!moe::needs_graph(x, weight)) return result;
  return moe::with_node(result, moe::make_node<AlignedMmBackward>(x, weight, groups, std::move(again)), x, weight);
}

at::Tensor grouped_mm(const at::Tensor& input, const at::Tensor& weights, at::IntArrayRef rows, ExpertBackend backend,
                      RegatherWeight gather) {
  TORCH_CHECK(input.dim() == 2 && weights.dim() == 3 && input.size(1) == weights.size(2), "grouped_mm: rows ",
              input.sizes(), " and weights ", weights.sizes(), " do not match");
  TORCH_CHECK(static_cast<std::int64_t>(rows.size()) == weights.size(0) && c10::sum_integers(rows) == input.size(0),
              "grouped_mm: expected one row count per expert with the sum of the rows, got ", rows, " for rows ",
              input.sizes(), " and weights ", weights.sizes());
  auto [x, weight, again] = as_autocast(input, weights, std::move(gather));
  if (backend == ExpertBackend::grouped && x.size(0) > 0) {
    const NoMeshScopeGuard regular;
    const auto groups = align_groups(at::tensor(rows, at::kLong).to(x.device()), x.size(0), /*alignment=*/1);
    return grouped_mm(x, weight, groups, std::move(again));
  }
  const auto settled = settle(backend, rows);
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = multiply(x.contiguous(), weight.transpose(1, 2), rows, settled);
  }
  if (!moe::needs_graph(x, weight)) return result;
  auto node = moe::make_node<GroupedMmBackward>(x, weight, rows.vec(), settled, std::move(again));
  return moe::with_node(result, node, x, weight);
}

}  // namespace dtensor
