// Expert choice: each expert takes its best tokens of the full batch. All ranks gather all scores and choose the same.
#include <ATen/ATen.h>

#include "dtensor/moe/dispatch.h"
#include "moe/dispatch/permute.h"
#include "moe/routing/router_parts.h"

namespace dtensor::moe {
namespace {

struct Gathered {
  at::Tensor scores;  // [tokens of all ranks, experts], in batch order
  at::Tensor mine;    // [tokens here] rows of this rank's tokens
};

Gathered gather_scores(const at::Tensor& scores, const TokenLayout& layout) {
  const auto here = scores.size(0);
  const auto longs = scores.options().dtype(at::kLong);
  if (!layout.ranks || layout.ranks.size() == 1) return {scores, at::arange(here, longs)};
  const auto rows = rows_of_ranks(here, layout.ranks);
  const auto all = all_gather_rows(scores, rows.of_each, layout.ranks);
  if (!layout.index.defined()) return {all, at::arange(rows.before, rows.before + here, longs)};
  const auto order = all_gather_rows(layout.index, rows.of_each, layout.ranks).argsort();
  return {all.index_select(0, order), order.argsort().narrow(0, rows.before, here)};
}

// [tokens, experts] bool to [tokens, choices]: a token's experts in order, padded with `none`.
at::Tensor list_experts(const at::Tensor& chosen, std::int64_t none) {
  const auto [has, expert] = at::sort(chosen.to(at::kByte), /*stable=*/true, 1, /*descending=*/true);
  const auto most = chosen.size(0) > 0 ? chosen.sum(1).max().item<std::int64_t>() : 0;
  const auto width = std::max<std::int64_t>(1, most);
  return expert.masked_fill(has == 0, none).narrow(1, 0, width).contiguous();
}

}  // namespace

at::Tensor choose_by_expert(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout) {
  const auto all = gather_scores(scores, layout);
  const auto tokens = all.scores.size(0);
  const auto wanted = static_cast<std::int64_t>(o.expert_capacity_factor * static_cast<double>(o.top_k * tokens) /
                                                static_cast<double>(o.experts));
  const auto capacity = std::clamp<std::int64_t>(wanted, std::min<std::int64_t>(1, tokens), tokens);
  const auto best = std::get<1>(all.scores.topk(capacity, 0));
  const auto chosen = at::zeros_like(all.scores, at::kBool).scatter_(0, best, true);
  return list_experts(chosen.index_select(0, all.mine), o.experts);
}

}  // namespace dtensor::moe
