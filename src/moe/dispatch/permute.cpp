// Permutations of rows within a rank: counting sort by bin, reordering of blocks, expansion of tokens to entries, and
// their combination with a fixed summation order.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <torch/csrc/autograd/variable.h>

#include <numeric>

#include "internal/simulated.h"
#include "moe/counting.h"
#include "moe/dispatch/permute.h"
#include "moe/local_function.h"
#include "moe/row_kernels.h"

namespace dtensor {
namespace {

using moe::Node;
using moe::SavedVariable;
using moe::variable_list;

using Sizes = std::vector<std::int64_t>;

struct ReorderBackward final : Node {
  ReorderBackward(Sizes s, Sizes o) : sizes(std::move(s)), order(std::move(o)) {}
  variable_list apply(variable_list&& grads) override {
    return {grads[0].defined() ? scatter_blocks(grads[0], sizes, order) : at::Tensor()};
  }
  std::string name() const override { return "ReorderBlocksBackward"; }
  Sizes sizes, order;
};

struct SpreadBackward final : Node {
  SpreadBackward(Sizes s, Sizes o) : sizes(std::move(s)), order(std::move(o)) {}
  variable_list apply(variable_list&& grads) override {
    return {grads[0].defined() ? gather_blocks(grads[0], sizes, order) : at::Tensor()};
  }
  std::string name() const override { return "SpreadBlocksBackward"; }
  Sizes sizes, order;
};

bool is_identity(at::IntArrayRef sizes, at::IntArrayRef order) {
  if (sizes.size() != order.size()) return false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

Sizes sizes_in_order(at::IntArrayRef sizes, at::IntArrayRef order) {
  Sizes result;
  for (const auto block : order) result.push_back(sizes.at(block));
  return result;
}

// Gradient of permute_tokens: unpermute_tokens without weights, and vice versa.
struct PermuteBackward final : Node {
  explicit PermuteBackward(at::Tensor p) : position(std::move(p)) {}
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {unpermute_tokens(grads[0], position)};
  }
  std::string name() const override { return "ExpandRowsBackward"; }
  at::Tensor position;
};

struct UnpermuteBackward final : Node {
  UnpermuteBackward(const at::Tensor& r, at::Tensor p, const at::Tensor& w)
      : rows(w.defined() ? SavedVariable(r, false) : SavedVariable()),
        weight(w, false),
        position(std::move(p)),
        kept(r.size(0)),
        weighted(w.defined()) {}

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    if (!weighted) return {permute_tokens(grads[0], position, kept), at::Tensor()};
    const NoMeshScopeGuard regular;
    const auto y = rows.unpack(), w = weight.unpack();
    if (at::GradMode::is_enabled()) return twice(grads[0], y, w);
    auto [dy, dw] = moe::unpermute_backward_kernel(grads[0], y, position, w);
    return {dy, dw};
  }
  void release_variables() override {
    rows.reset_data();
    weight.reset_data();
  }
  std::string name() const override { return "CombineRowsBackward"; }

  // Gradients from differentiable operators, for double backward.
  variable_list twice(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& w) const {
    const auto spread = permute_tokens(grad, position, kept);
    const auto row_weight = permute_entries(w);
    const auto dots = (y * spread).sum(1).to(w.scalar_type());
    const auto padded = at::cat({dots, at::zeros({1}, dots.options())});
    const auto dw = padded.index_select(0, at::where(position < 0, kept, position).flatten()).view(w.sizes());
    return {spread * row_weight.unsqueeze(1).to(spread.scalar_type()), dw};
  }
  // [tokens, choices] to [kept].
  at::Tensor permute_entries(const at::Tensor& w) const {
    const auto each = at::arange(position.numel(), position.options());
    const auto row = at::zeros({kept + 1}, position.options())
                         .scatter(0, at::where(position < 0, kept, position).flatten(), each)
                         .narrow(0, 0, kept);
    return w.flatten().index_select(0, row);
  }

  SavedVariable rows, weight;
  at::Tensor position;
  std::int64_t kept;
  bool weighted;
};

}  // namespace

at::Tensor count_bins(const at::Tensor& ids, std::int64_t bins) {
  const LocalBelowAutogradGuard guard;
  TORCH_CHECK(ids.scalar_type() == at::kLong, "count_bins: expected int64 ids, got ", ids.scalar_type());
  moe::count(&MoeCounters::histograms);
  return moe::count_kernel(ids.contiguous(), bins);
}

SortedBins sort_by_bin(const at::Tensor& ids, std::int64_t bins, const at::Tensor& counts, std::int64_t kept) {
  const LocalBelowAutogradGuard guard;
  TORCH_CHECK(ids.scalar_type() == at::kLong, "sort_by_bin: expected int64 ids, got ", ids.scalar_type());
  const auto entries = ids.contiguous().flatten();
  moe::count(&MoeCounters::sorts);
  return moe::sort_kernel(entries, counts.defined() ? counts : count_bins(entries, bins), kept);
}

at::Tensor gather_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order) {
  if (is_identity(sizes, order)) return input;
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    const auto blocks = input.split_with_sizes(sizes, 0);
    std::vector<at::Tensor> placed;
    for (const auto block : order) placed.push_back(blocks.at(block));
    result = placed.empty() ? input.narrow(0, 0, 0).clone() : at::cat(placed);
  }
  if (!moe::needs_graph(input)) return result;
  return moe::with_node(result, moe::make_node<ReorderBackward>(sizes.vec(), order.vec()), input);
}

at::Tensor scatter_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order) {
  if (is_identity(sizes, order)) return input;
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    std::vector<at::Tensor> blocks(sizes.size());
    const auto pieces = input.split_with_sizes(sizes_in_order(sizes, order), 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      auto& block = blocks.at(order[i]);
      block =
          block.defined() ? block + pieces[i] : pieces[i];  // if `order` names a block twice, both gradients are added
    }
    at::DimVector like(input.sizes());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      like[0] = sizes[i];
      if (!blocks[i].defined()) blocks[i] = at::zeros(like, input.options());
    }
    result = blocks.empty() ? input.narrow(0, 0, 0).clone() : at::cat(blocks);
  }
  if (!moe::needs_graph(input)) return result;
  return moe::with_node(result, moe::make_node<SpreadBackward>(sizes.vec(), order.vec()), input);
}

at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& position, std::int64_t kept) {
  TORCH_CHECK(position.dim() == 2 && position.size(0) == x.size(0),
              "permute_tokens: expected positions [tokens, choices], got ", position.sizes(), " for ", x.size(0),
              " tokens");
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = moe::permute_kernel(x, position, kept);
  }
  if (!moe::needs_graph(x)) return result;
  return moe::with_node(result, moe::make_node<PermuteBackward>(position), x);
}

at::Tensor unpermute_tokens(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight) {
  TORCH_CHECK(position.dim() == 2, "unpermute_tokens: expected positions [tokens, choices], got ", position.sizes());
  TORCH_CHECK(!weight.defined() || weight.sizes() == position.sizes(),
              "unpermute_tokens: expected weights with the sizes of the positions, got ", weight.sizes(),
              " for positions ", position.sizes());
  at::Tensor result;
  {
    const LocalBelowAutogradGuard guard;
    result = moe::unpermute_kernel(rows, position, weight);
  }
  if (!moe::needs_graph(rows, weight)) return result;
  return moe::with_node(result, moe::make_node<UnpermuteBackward>(rows, position, weight), rows, weight);
}

at::Tensor add_unpermuted_tokens(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                                 const at::Tensor& weight, at::TensorList keep) {
  const bool seen = std::any_of(keep.begin(), keep.end(), [&](const auto& t) { return shares_storage(t, base); });
  if (seen || moe::needs_graph(base, rows, weight) || !base.is_contiguous()) {
    return base + unpermute_tokens(rows, position, weight);
  }
  {
    const LocalBelowAutogradGuard guard;
    moe::add_combined_kernel(base, rows, position, weight);
  }
  moe::count(&MoeCounters::in_place_combines);
  if (!base.is_inference()) torch::autograd::impl::bump_version(base);
  return base;
}

}  // namespace dtensor
