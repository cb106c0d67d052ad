// The forward pass: computes with the current block while the next one is received; merges results by their
// log-sum-exp.
#include "attention/passes/passes.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <limits>

#include "attention/passes/key_value_exchange.h"
#include "internal/simulated.h"

namespace dtensor::attention_impl {
namespace {

constexpr double kUnmerged = -std::numeric_limits<double>::infinity();
constexpr double kNegligible = 100;                            // exp(-100) is negligible in a sum, even in double
constexpr std::int64_t kResultAtOnce = std::int64_t{1} << 20;  // bytes of a tile's result before merging

// Accumulates the results of tiles.
class Merger {
 public:
  explicit Merger(const Inputs& in) {
    at::DimVector sizes(in.q.sizes());
    const auto options = in.q.options().dtype(accumulate_type(in.q.scalar_type()));
    lse_ = at::full({sizes[0], sizes[1], sizes[2]}, kUnmerged, options);
    sizes[3] = in.v.size(3);
    out_ = at::empty_strided(sizes, at::infer_dense_strides(sizes, in.q.strides()), options).zero_();
    touched_.resize(static_cast<std::size_t>(sizes[2]));
  }

  // Whether nothing was merged into these rows before; marks them as merged.
  bool first_of(const Rows& rows) {
    const auto begin = touched_.begin() + rows.local, end = begin + rows.length;
    const bool first = std::none_of(begin, end, [](char touched) { return touched != 0; });
    std::fill(begin, end, 1);
    return first;
  }

  // Whether a row's log-sum-exp is too far from zero for float precision and not negligible against the accumulated
  // one: a 0-dim bool.
  at::Tensor loses_sums(const Tile& tile, std::int64_t head, const TileResult& part) const {
    const auto rows = [&](const at::Tensor& t) { return rows_of(t.narrow(1, head, part.out.size(1)), tile.q); };
    const auto have = row_max_.defined() ? rows(lse_) + rows(row_max_) : rows(lse_);
    return exceeds_log_precision(part.lse).logical_and_(part.lse.ge(have - kNegligible)).any();
  }

  void add(const Tile& tile, std::int64_t head, const TileResult& part, bool first) {
    const auto rows = [&](const at::Tensor& t) { return rows_of(t.narrow(1, head, part.out.size(1)), tile.q); };
    const auto lse = rows(lse_), out = rows(out_);
    if (part.row_max.defined() && !row_max_.defined()) row_max_ = at::zeros_like(lse_);
    if (first && !part.row_max.defined()) {
      out.copy_(part.out);
      lse.copy_(part.lse);
      return;
    }
    auto more = part.lse;
    if (row_max_.defined()) more = rescale_to_common_max(lse, rows(row_max_), part);
    const auto sum = at::logaddexp(lse, more);
    const auto weight = [&](const at::Tensor& of) {
      return (of - sum).exp_().masked_fill_(sum.eq(kUnmerged), 0).unsqueeze_(3);
    };
    out.mul_(weight(lse)).addcmul_(part.out.to(out.scalar_type()), weight(more));
    lse.copy_(sum);
  }

  // Combines with the results of other ranks for the same queries and other keys.
  void combine(const Communicator& comm) {
    const auto max_lse = rescale_over_ranks(comm);
    const auto nothing = max_lse.eq(kUnmerged);
    const auto weight = (lse_ - max_lse).exp_().masked_fill_(nothing, 0);
    out_.mul_(weight.unsqueeze(3));
    comm.all_reduce_list({out_, weight}, ReduceOp::sum).wait();
    out_.div_(weight.masked_fill(nothing, 1).unsqueeze_(3));
    lse_ = max_lse + weight.log();
    if (row_max_.is_cpu() && !item_or(row_max_.ne(0).any(), false)) row_max_ = at::Tensor();
  }

  Forward finish(const at::Tensor& sinks, at::ScalarType type) {
    if (sinks.defined()) {
      auto score = sinks.to(lse_.scalar_type()).view({1, -1, 1});
      if (row_max_.defined()) {
        const auto row_max = at::where((lse_ + row_max_).ge(score), row_max_, 0);
        lse_ = lse_ + (row_max_ - row_max);
        score = score - row_max;
        row_max_ = row_max;
      }
      const auto sum = at::logaddexp(lse_, score);
      out_.mul_((lse_ - sum).exp_().masked_fill_(sum.eq(kUnmerged), 0).unsqueeze_(3));
      lse_ = sum;
    }
    return {out_.to(type), lse_, row_max_};
  }

 private:
  // Rescales the accumulated and the new log-sum-exp to the maximum of the greater one; returns the new log-sum-exp.
  static at::Tensor rescale_to_common_max(const at::Tensor& lse, const at::Tensor& row_max, const TileResult& part) {
    const auto other = part.row_max.defined() ? part.row_max : at::zeros_like(row_max);
    const auto one = at::where((part.lse + other).gt(lse + row_max), other, row_max);
    lse.add_(row_max - one);
    row_max.copy_(one);
    return part.lse + (other - one);
  }

  // Rescales to a common maximum on all ranks; returns the greatest log-sum-exp where no maximum is stored separately,
  // else 0.
  at::Tensor rescale_over_ranks(const Communicator& comm) {
    const auto own = row_max_.defined() ? row_max_ : at::zeros_like(lse_);
    const auto both = at::stack({own.masked_fill(lse_.eq(kUnmerged), kUnmerged), lse_ + own});
    comm.all_reduce(both, ReduceOp::max).wait();
    row_max_ = both[0].masked_fill(both[0].eq(kUnmerged), 0);
    lse_ = lse_ + (own - row_max_);
    return both[1].masked_fill(row_max_.ne(0), 0);
  }

  at::Tensor out_, lse_;
  at::Tensor row_max_;  // as in TileResult: lse_ is relative to it; the maximum score of rows far from zero, else 0
  std::vector<char> touched_;
};

// Processes some heads at a time, so that a tile's result before merging is small.
void attend(const Scores& scores, const Tile& tile, const Inputs& in, Merger& merger) {
  const auto groups = in.k.size(1), heads_per_group = in.q.size(1) / groups;
  const auto bytes =
      in.q.size(0) * tile.q.length * in.v.size(3) * heads_per_group * static_cast<std::int64_t>(in.q.element_size());
  const bool split = scores.dropout == 0 && bytes * groups > kResultAtOnce;
  const auto at_once =
      split ? std::clamp<std::int64_t>(kResultAtOnce / std::max<std::int64_t>(bytes, 1), 1, groups) : groups;
  const bool first = merger.first_of(tile.q);
  for (std::int64_t g = 0; g < groups; g += at_once) {
    const auto count = std::min(at_once, groups - g);
    Scores some = scores;
    if (some.mask.defined() && some.mask.size(1) > 1)
      some.mask = some.mask.narrow(1, g * heads_per_group, count * heads_per_group);
    const Inputs part{in.q.narrow(1, g * heads_per_group, count * heads_per_group), in.k.narrow(1, g, count),
                      in.v.narrow(1, g, count)};
    auto found = attend_tile(some, tile, part);
    if (in.q.is_cpu()) {
      const bool loses = item_or(merger.loses_sums(tile, g * heads_per_group, found), false);
      if (loses) found = attend_tile_with_row_max(some, tile, part);
    } else if (!first && !found.row_max.defined()) {
      at::_assert_async(
          merger.loses_sums(tile, g * heads_per_group, found).logical_not(),
          "attention: a row's scores exceed 1000, so blocks of keys cannot be merged in float32; scale the "
          "queries, or use AttentionStrategyScope(ulysses)");
    }
    merger.add(tile, g * heads_per_group, found, first);
  }
}

}  // namespace

Forward forward_pass(const Scores& scores, const SequenceParts& blocks, const Inputs& in, const at::Tensor& sinks) {
  Merger merger(in);
  ExchangePlan plan(scores, blocks);
  const auto compute = [&](const std::vector<Tile>& tiles, const at::Tensor& k, const at::Tensor& v) {
    if (tiles.empty()) return;
    const GroupedHeads heads(blocks, in.q);
    const auto keys = heads.expand_to_query_heads(k), values = heads.expand_to_query_heads(v);
    for (const Tile& tile : tiles) attend(scores, tile, of_tile(tile, in.q, keys, values), merger);
  };
  if (!is_empty_problem(in)) {
    PendingWorks sent = send_all_blocks(plan, blocks, in);
    KeyValueBlock next;
    if (plan.ranks() > 1) next = receive_next_block(plan, blocks, in, 1);
    compute(plan.computed(blocks.me), in.k, in.v);
    for (int turn = 1; turn < plan.ranks(); ++turn) {
      finish(next.works);
      const KeyValueBlock block = std::move(next);
      if (turn + 1 < plan.ranks()) next = receive_next_block(plan, blocks, in, turn + 1);
      compute(to_buffer_rows(plan.computed(plan.before(turn)), block.runs), block.k, block.v);
    }
    finish(sent);
    if (blocks.merge) merger.combine(blocks.merge);
  }
  return merger.finish(sinks, in.q.scalar_type());
}

}  // namespace dtensor::attention_impl
