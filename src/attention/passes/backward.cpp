// The backward pass: key/value blocks are exchanged again, and gradients of a block are sent directly to its owner,
// which sums them in the order of turns. Processes a few heads at a time, so that gradients in transit are small.
#include <ATen/ATen.h>

#include <limits>

#include "attention/passes/key_value_exchange.h"
#include "internal/contiguous_ranges.h"

namespace dtensor::attention_impl {
namespace {

constexpr double kUnseenRow = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kBytesAtOnce = std::int64_t{1} << 20;  // bytes of a block's keys; smaller blocks are not split
constexpr std::int64_t kMaxHeadSplits = 8;                    // more splits would leave too little work per thread

// A range of key heads.
struct HeadRange {
  std::int64_t first, count;
};

at::Tensor heads_of(const at::Tensor& t, const HeadRange& heads, std::int64_t per_group = 1) {
  return t.narrow(1, heads.first * per_group, heads.count * per_group);
}

// Splits the heads; the same on all ranks of the exchange, regardless of their parts of the sequence.
std::vector<HeadRange> cut_heads(const Scores& scores, const SequenceParts& blocks, const Inputs& in) {
  const auto heads = in.k.size(1);
  std::int64_t rows = 0;
  for (const Segments& held : blocks.kv) rows = std::max(rows, total_length(held));
  const auto bytes = in.k.size(0) * heads * rows * (in.k.size(3) + in.v.size(3)) * 4;
  const bool full = bytes <= kBytesAtOnce || scores.dropout > 0 || !blocks.heads.empty();
  const auto at_once = full ? heads : std::max<std::int64_t>(1, (heads + kMaxHeadSplits - 1) / kMaxHeadSplits);
  std::vector<HeadRange> all;
  for (std::int64_t g = 0; g < heads; g += at_once) all.push_back({g, std::min(at_once, heads - g)});
  return all;
}

class BackwardPass {
 public:
  BackwardPass(const Scores& scores, const SequenceParts& blocks, const Inputs& in, const Forward& result,
               const at::Tensor& grad)
      : scores_(scores),
        blocks_(blocks),
        in_(in),
        plan_(scores, blocks),
        heads_(blocks, in.q),
        heads_per_group_(blocks.heads.empty() && in.k.size(1) > 0 ? in.q.size(1) / in.k.size(1) : 0),
        cuts_(cut_heads(scores, blocks, in)) {
    const auto type = accumulate_type(in.q.scalar_type());
    rows_.grad = grad;
    rows_.out = result.out;
    rows_.lse = result.lse.masked_fill(result.lse.eq(kUnseenRow), -kUnseenRow);
    rows_.row_max = result.row_max;
    rows_.delta = (grad.to(type) * result.out.to(type)).sum(3);
    sum_ = {zeros(in.q), zeros(in.k), zeros(in.v)};
  }

  Backward run(const at::Tensor& sinks) {
    if (!is_empty_problem(in_)) {
      PendingWorks sent = send_all_blocks(plan_, blocks_, in_);
      KeyValueBlock next;
      if (plan_.ranks() > 1) next = receive_next_block(plan_, blocks_, in_, 1);
      const auto own = plan_.computed(blocks_.me);
      for (const auto& some : cuts_) {
        compute(own, some, heads_of(in_.k, some), heads_of(in_.v, some), heads_of(sum_.k, some),
                heads_of(sum_.v, some));
      }
      for (int turn = 1; turn < plan_.ranks(); ++turn) {
        finish(next.works);
        const KeyValueBlock block = std::move(next);
        if (turn + 1 < plan_.ranks()) next = receive_next_block(plan_, blocks_, in_, turn + 1);
        for (const auto& some : cuts_) give_back(block, turn, some);
      }
      add_arrived();
      finish(returned_works_);
      finish(sent);
    }
    return {in_type(), sinks_gradient(sinks)};
  }

 private:
  at::Tensor zeros(const at::Tensor& like) const {
    return at::zeros(like.sizes(), like.options().dtype(accumulate_type(like.scalar_type())));
  }

  Inputs in_type() const {
    const auto type = in_.q.scalar_type();
    return {sum_.q.to(type), sum_.k.to(type), sum_.v.to(type)};
  }

  // The query heads of these key heads; all if they are not equal groups.
  at::Tensor query_heads(const at::Tensor& t, const HeadRange& some) const {
    return heads_per_group_ == 0 ? t : heads_of(t, some, heads_per_group_);
  }

  void compute(const std::vector<Tile>& tiles, const HeadRange& some, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& dk, const at::Tensor& dv) {
    if (tiles.empty()) return;
    const auto keys = heads_.expand_to_query_heads(k), values = heads_.expand_to_query_heads(v);
    const auto queries = query_heads(in_.q, some), dq = query_heads(sum_.q, some);
    Scores scores = scores_;
    if (scores.mask.defined() && scores.mask.size(1) > 1) scores.mask = query_heads(scores.mask, some);
    for (const Tile& tile : tiles) {
      const auto of_rows = [&](const at::Tensor& t) { return rows_of(query_heads(t, some), tile.q); };
      const RowState rows{of_rows(rows_.grad), of_rows(rows_.out), of_rows(rows_.lse),
                          rows_.row_max.defined() ? of_rows(rows_.row_max) : at::Tensor(), of_rows(rows_.delta)};
      const auto found = tile_gradients(scores, tile, of_tile(tile, queries, keys, values), rows);
      rows_of(dq, tile.q).add_(found.q);
      heads_.add(rows_of(dk, tile.kv), found.k);
      heads_.add(rows_of(dv, tile.kv), found.v);
    }
  }

  // Sends the gradients of the current block to its owner, and receives gradients of the own block from the rank that
  // has it. Completes the transfers of the previous heads first.
  void give_back(const KeyValueBlock& block, int turn, const HeadRange& some) {
    const int owner = plan_.before(turn);
    at::Tensor dk, dv;
    if (!block.runs.empty()) {
      const auto k = heads_of(block.k, some), v = heads_of(block.v, some);
      dk = zeros(k), dv = zeros(v);
      compute(to_buffer_rows(plan_.computed(owner), block.runs), some, k, v, dk, dv);
    }
    add_arrived();
    finish(returned_works_);
    if (!block.runs.empty()) {
      send(blocks_.comm, dk.to(in_.k.scalar_type()), owner, kGradients, returned_works_);
      send(blocks_.comm, dv.to(in_.v.scalar_type()), owner, kGradients, returned_works_);
    }
    const int reader = plan_.after(turn);
    arriving_ =
        buffer_for(keys_read(plan_.tiles(reader, blocks_.me)), {in_.q, heads_of(in_.k, some), heads_of(in_.v, some)});
    arriving_heads_ = some;
    if (arriving_.runs.empty()) return;
    receive(blocks_.comm, arriving_.k, reader, kGradients, arriving_.works);
    receive(blocks_.comm, arriving_.v, reader, kGradients, arriving_.works);
  }

  void add_arrived() {
    finish(arriving_.works);
    for_each_run(arriving_.runs, [&](const Rows& run, std::int64_t at) {
      rows_of(heads_of(sum_.k, arriving_heads_), run).add_(arriving_.k.narrow(2, at, run.length));
      rows_of(heads_of(sum_.v, arriving_heads_), run).add_(arriving_.v.narrow(2, at, run.length));
    });
    arriving_ = {};
  }

  at::Tensor sinks_gradient(const at::Tensor& sinks) const {
    if (!sinks.defined()) return {};
    auto score = sinks.to(rows_.lse.scalar_type()).view({1, -1, 1});
    if (rows_.row_max.defined()) score = score - rows_.row_max;
    const auto weight = (score - rows_.lse).exp_();
    return weight.mul_(rows_.delta).sum(at::IntArrayRef{0, 2}).neg_().to(sinks.scalar_type());
  }

  const Scores& scores_;
  const SequenceParts& blocks_;
  const Inputs& in_;
  ExchangePlan plan_;
  GroupedHeads heads_;
  std::int64_t heads_per_group_;  // query heads per key head; 0: not equal for all
  std::vector<HeadRange> cuts_;
  RowState rows_;
  Inputs sum_;
  KeyValueBlock arriving_;
  HeadRange arriving_heads_{0, 0};
  PendingWorks returned_works_;
};

}  // namespace

Backward backward_pass(const Scores& scores, const SequenceParts& blocks, const Inputs& in, const Forward& result,
                       const at::Tensor& grad, const at::Tensor& sinks) {
  return BackwardPass(scores, blocks, in, result, grad).run(sinks);
}

}  // namespace dtensor::attention_impl
