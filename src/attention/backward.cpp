// The backward pass: blocks come again, and the gradients of each go straight to its owner, who adds them up in the
// order of the turns.
#include <ATen/ATen.h>

#include <limits>

#include "attention/exchange.h"

namespace dtensor::attention_parts {
namespace {

constexpr double kUnseenRow = -std::numeric_limits<double>::infinity();

class BackwardPass {
 public:
  BackwardPass(const Scores& scores, const Blocks& blocks, const Inputs& in, const Forward& result,
               const at::Tensor& grad)
      : scores_(scores), blocks_(blocks), in_(in), plan_(scores, blocks), heads_(blocks, in.q) {
    const auto type = accumulate_type(in.q.scalar_type());
    rows_.grad = grad;
    rows_.out = result.out;
    rows_.lse = result.lse.masked_fill(result.lse.eq(kUnseenRow), -kUnseenRow);
    rows_.delta = (grad.to(type) * result.out.to(type)).sum(3);
    sum_ = {zeros(in.q), zeros(in.k), zeros(in.v)};
  }

  Backward run(const at::Tensor& sinks) {
    if (!nothing_to_do(in_)) {
      Works sent = send_all(plan_, blocks_, in_);
      Block next;
      if (plan_.ranks() > 1) next = next_block(plan_, blocks_, in_, 1);
      compute(plan_.computed(blocks_.me), in_.k, in_.v, sum_.k, sum_.v);
      for (int turn = 1; turn < plan_.ranks(); ++turn) {
        finish(next.works);
        const Block block = std::move(next);
        if (turn + 1 < plan_.ranks()) next = next_block(plan_, blocks_, in_, turn + 1);
        give_back(block, turn);
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

  void compute(const std::vector<Tile>& tiles, const at::Tensor& k, const at::Tensor& v, const at::Tensor& dk,
               const at::Tensor& dv) {
    if (tiles.empty()) return;
    const auto keys = heads_.spread(k), values = heads_.spread(v);
    for (const Tile& tile : tiles) {
      const auto of_rows = [&](const at::Tensor& t) { return rows_of(t, tile.q); };
      const RowState rows{of_rows(rows_.grad), of_rows(rows_.out), of_rows(rows_.lse), of_rows(rows_.delta)};
      const auto found = tile_gradients(scores_, tile, of_tile(tile, in_.q, keys, values), rows);
      of_rows(sum_.q).add_(found.q);
      heads_.add(rows_of(dk, tile.kv), found.k);
      heads_.add(rows_of(dv, tile.kv), found.v);
    }
  }

  // Gradients of the block that was here go home, those of the own block arrive from where that was. One block's are on
  // their way each way: those of the turn before have come by then.
  void give_back(const Block& block, int turn) {
    const int owner = plan_.before(turn);
    at::Tensor dk, dv;
    if (!block.runs.empty()) {
      dk = zeros(block.k), dv = zeros(block.v);
      compute(in_buffer(plan_.computed(owner), block.runs), block.k, block.v, dk, dv);
    }
    add_arrived();
    finish(returned_works_);
    if (!block.runs.empty()) {
      send(blocks_.comm, dk.to(in_.k.scalar_type()), owner, kGradients, returned_works_);
      send(blocks_.comm, dv.to(in_.v.scalar_type()), owner, kGradients, returned_works_);
    }
    const int reader = plan_.after(turn);
    arriving_ = buffer_for(keys_read(plan_.tiles(reader, blocks_.me)), in_);
    if (arriving_.runs.empty()) return;
    receive(blocks_.comm, arriving_.k, reader, kGradients, arriving_.works);
    receive(blocks_.comm, arriving_.v, reader, kGradients, arriving_.works);
  }

  void add_arrived() {
    finish(arriving_.works);
    each_run(arriving_.runs, [&](const Rows& run, std::int64_t at) {
      rows_of(sum_.k, run).add_(arriving_.k.narrow(2, at, run.length));
      rows_of(sum_.v, run).add_(arriving_.v.narrow(2, at, run.length));
    });
    arriving_ = {};
  }

  at::Tensor sinks_gradient(const at::Tensor& sinks) const {
    if (!sinks.defined()) return {};
    const auto weight = (sinks.to(rows_.lse.scalar_type()).view({1, -1, 1}) - rows_.lse).exp_();
    return weight.mul_(rows_.delta).sum(at::IntArrayRef{0, 2}).neg_().to(sinks.scalar_type());
  }

  const Scores& scores_;
  const Blocks& blocks_;
  const Inputs& in_;
  Plan plan_;
  Heads heads_;
  RowState rows_;
  Inputs sum_;
  Block arriving_;
  Works returned_works_;
};

}  // namespace

Backward backward_pass(const Scores& scores, const Blocks& blocks, const Inputs& in, const Forward& result,
                       const at::Tensor& grad, const at::Tensor& sinks) {
  return BackwardPass(scores, blocks, in, result, grad).run(sinks);
}

}  // namespace dtensor::attention_parts
