// One matrix product an expert, over rows that stand in order of experts, by three backends with one gradient.
#include <ATen/ATen.h>

#include "dtensor/moe/experts.h"
#include "moe/node.h"
#include "moe/row_kernels.h"

namespace dtensor {
namespace {

using moe::Node;
using moe::SavedVariable;
using moe::variable_list;
using Rows = std::vector<std::int64_t>;

ExpertBackend settle(ExpertBackend backend, at::IntArrayRef rows) {
  if (backend == ExpertBackend::automatic) return moe::all_equal(rows) ? ExpertBackend::batched : ExpertBackend::loop;
  TORCH_CHECK(backend != ExpertBackend::batched || moe::all_equal(rows),
              "grouped_mm: the batched backend needs equally many rows an expert, not ", rows);
  return backend;
}

// [E * n, d] to [E, n, d]
at::Tensor batched(const at::Tensor& x, at::IntArrayRef rows) {
  return x.view({static_cast<std::int64_t>(rows.size()), rows[0], x.size(1)});
}

at::Tensor offsets(at::IntArrayRef rows, const at::Tensor& like) {
  std::vector<std::int32_t> ends;
  std::int32_t end = 0;
  for (const auto r : rows) ends.push_back(end += static_cast<std::int32_t>(r));
  return at::tensor(ends, at::kInt).to(like.device());
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
  if (backend == ExpertBackend::grouped) return at::_grouped_mm(x, weight, offsets(rows, x));
  auto result = at::empty({x.size(0), weight.size(2)}, x.options());
  each_expert(rows, [&](std::int64_t e, std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    auto out = result.narrow(0, first, count);
    at::mm_out(out, x.narrow(0, first, count), weight.select(0, e));
  });
  return result;
}

// Groups lie along the inner dimension here, so they must begin at multiples of 16 bytes.
at::Tensor grouped_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef rows) {
  const auto counts = at::tensor(rows, at::kLong).to(x.device());
  const auto groups = align_groups(counts, x.size(0), 16 / static_cast<std::int64_t>(x.element_size()));
  auto result = at::_grouped_mm(groups.spread(grad).t(), groups.spread(x), groups.ends);
  // Nothing was multiplied for an empty group.
  return result.masked_fill_((counts == 0).view({-1, 1, 1}), 0);
}

// grad[rows of e]^T * x[rows of e]: [E, N, K].
at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef rows, ExpertBackend backend) {
  if (backend == ExpertBackend::batched) return at::bmm(batched(grad, rows).transpose(1, 2), batched(x, rows));
  if (backend == ExpertBackend::grouped && x.size(0) > 0) return grouped_weight_gradient(grad, x, rows);
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
  GroupedMmBackward(const at::Tensor& x_, const at::Tensor& w, Rows r, ExpertBackend b, WeightAgain a)
      : x(x_, false), weight(a ? at::Tensor() : w, false), rows(std::move(r)), backend(b), again(std::move(a)) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    TORCH_CHECK(!at::GradMode::is_enabled(), "grouped_mm: not differentiable twice; use the list of experts");
    at::AutoDispatchBelowADInplaceOrView guard;
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
  WeightAgain again;
};

}  // namespace

AlignedGroups align_groups(const at::Tensor& counts, std::int64_t rows, std::int64_t alignment) {
  TORCH_CHECK(alignment >= 1 && counts.dim() == 1, "align_groups: counts ", counts.sizes(), ", alignment ", alignment);
  const auto ends = counts.cumsum(0);
  const auto padded_ends = counts.add(alignment - 1).div(alignment, "floor").mul(alignment).cumsum(0);
  const auto row = at::arange(rows, counts.options());
  const auto group = at::bucketize(row, ends, false, /*right=*/true);
  const auto shift = (padded_ends - ends).roll(1);  // of the groups before; the first has none
  AlignedGroups result;
  result.place = row + at::where(group > 0, shift.index_select(0, group), 0);
  result.ends = padded_ends.to(at::kInt);
  const auto bound = rows + counts.size(0) * (alignment - 1);
  result.rows = (bound + alignment - 1) / alignment * alignment;
  return result;
}

at::Tensor AlignedGroups::spread(const at::Tensor& x) const {
  return at::zeros({rows, x.size(1)}, x.options()).index_copy_(0, place, x);
}

at::Tensor AlignedGroups::gather(const at::Tensor& y) const { return y.index_select(0, place); }

at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef rows, ExpertBackend backend,
                      WeightAgain again) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 3 && x.size(1) == weight.size(2), "grouped_mm: rows ", x.sizes(),
              " and weights ", weight.sizes(), " disagree");
  TORCH_CHECK(static_cast<std::int64_t>(rows.size()) == weight.size(0) && c10::sum_integers(rows) == x.size(0),
              "grouped_mm: rows ", rows, " of ", x.sizes(), " for weights ", weight.sizes());
  const auto settled = settle(backend, rows);
  at::Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = multiply(x.contiguous(), weight.transpose(1, 2), rows, settled);
  }
  if (!moe::needs_graph(x, weight)) return result;
  auto node = moe::make_node<GroupedMmBackward>(x, weight, rows.vec(), settled, std::move(again));
  return moe::with_node(result, node, x, weight);
}

}  // namespace dtensor
