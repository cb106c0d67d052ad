// Blocks of keys and values go from rank to rank: in turn t each rank has the block of the rank t before it, and while
// it computes with one the next arrives. Only rows that the receiver's queries see are sent. In the backward pass the
// gradients of a block go straight to its owner, who adds them up in the order of the turns.
#include "attention/passes.h"

#include <ATen/ATen.h>

#include <limits>
#include <map>

#include "dtensor/contiguous_ranges.h"

namespace dtensor::attention_parts {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kResultAtOnce = std::int64_t{1} << 20;  // bytes of a tile's result before it is merged

bool needs_positions(const Scores& scores) { return scores.mask.defined() || scores.dropout > 0; }

class Plan {
 public:
  Plan(const Scores& scores, const Blocks& blocks) : scores_(scores), blocks_(blocks) {}

  int ranks() const { return static_cast<int>(blocks_.q.size()); }
  int before(int turn) const { return (blocks_.me + ranks() - turn) % ranks(); }
  int after(int turn) const { return (blocks_.me + turn) % ranks(); }

  // What the queries of `receiver` do with the keys of `owner`. Both find the same.
  const std::vector<Tile>& tiles(int receiver, int owner) {
    const auto [entry, is_new] = known_.try_emplace({receiver, owner});
    if (is_new) entry->second = find(receiver, owner);
    return entry->second;
  }
  // The same of this rank's queries, less what only this rank knows to be empty.
  std::vector<Tile> computed(int owner) {
    auto found = tiles(blocks_.me, owner);
    if (scores_.own_rows && scores_.mask.defined()) drop_unseen(found);
    return found;
  }

 private:
  std::vector<Tile> find(int receiver, int owner) const {
    auto found = tiles_of(blocks_.q[receiver], blocks_.kv[owner], scores_.pattern);
    if (!scores_.own_rows && scores_.mask.defined()) drop_unseen(found);
    return needs_positions(scores_) ? found : merged(std::move(found));
  }
  void drop_unseen(std::vector<Tile>& tiles) const {
    std::erase_if(tiles, [&](const Tile& tile) { return !mask_sees(scores_, tile); });
  }

  const Scores& scores_;
  const Blocks& blocks_;
  std::map<std::pair<int, int>, std::vector<Tile>> known_;  // a mask is looked at once
};

std::int64_t length_of(const std::vector<Rows>& rows) {
  std::int64_t length = 0;
  for (const Rows& r : rows) length += r.length;
  return length;
}

// Calls fn(rows of the block, first row in a buffer that holds nothing but these).
template <class F>
void each_run(const std::vector<Rows>& runs, const F& fn) {
  std::int64_t at = 0;
  for (const Rows& run : runs) {
    fn(run, at);
    at += run.length;
  }
}

// Tiles whose keys are in a buffer of `runs` alone.
std::vector<Tile> in_buffer(std::vector<Tile> tiles, const std::vector<Rows>& runs) {
  for (Tile& tile : tiles) {
    each_run(runs, [&, local = tile.kv.local](const Rows& run, std::int64_t at) {
      if (local >= run.local && local < run.local + run.length) tile.kv.local = at + local - run.local;
    });
  }
  return tiles;
}

using Works = std::vector<Work>;

void finish(Works& works) {
  for (Work& work : works) work.wait();
  works.clear();
}

at::Tensor rows_of(const at::Tensor& t, const Rows& rows) { return t.narrow(2, rows.local, rows.length); }

// Blocks and gradients cross between the same ranks, in an order that depends on the rank: told apart by tags.
enum Tag : int { kKeys, kGradients };

void send(const Communicator& comm, const at::Tensor& tensor, int peer, Tag tag, Works& works) {
  if (tensor.numel() > 0) works.push_back(comm.send(tensor, peer, tag));
}

void receive(const Communicator& comm, const at::Tensor& tensor, int peer, Tag tag, Works& works) {
  if (tensor.numel() > 0) works.push_back(comm.recv(tensor, peer, tag));
}

// Keys and values, or their gradients, of another rank's block.
struct Block {
  std::vector<Rows> runs;
  at::Tensor k, v;
  Works works;
};

Block buffer_for(std::vector<Rows> runs, const Inputs& like) {
  auto sizes_of = [&](const at::Tensor& t) {
    return std::vector<std::int64_t>{t.size(0), t.size(1), length_of(runs), t.size(3)};
  };
  return {runs, at::empty(sizes_of(like.k), like.k.options()), at::empty(sizes_of(like.v), like.v.options()), {}};
}

Block next_block(Plan& plan, const Blocks& blocks, const Inputs& in, int turn) {
  const int owner = plan.before(turn);
  Block block = buffer_for(keys_read(plan.tiles(blocks.me, owner)), in);
  if (length_of(block.runs) == 0) return block;
  receive(blocks.comm, block.k, owner, kKeys, block.works);
  receive(blocks.comm, block.v, owner, kKeys, block.works);
  return block;
}

at::Tensor packed(const at::Tensor& t, const std::vector<Rows>& runs) {
  if (runs.size() == 1) return rows_of(t, runs.front());
  std::vector<at::Tensor> parts;
  for (const Rows& run : runs) parts.push_back(rows_of(t, run));
  return at::cat(parts, 2);
}

Works send_all(Plan& plan, const Blocks& blocks, const Inputs& in) {
  Works works;
  for (int turn = 1; turn < plan.ranks(); ++turn) {
    const int receiver = plan.after(turn);
    const auto runs = keys_read(plan.tiles(receiver, blocks.me));
    if (runs.empty()) continue;
    send(blocks.comm, packed(in.k, runs), receiver, kKeys, works);
    send(blocks.comm, packed(in.v, runs), receiver, kKeys, works);
  }
  return works;
}

// The heads of keys as the query heads ask for them.
class Heads {
 public:
  Heads(const Blocks& blocks, const at::Tensor& like) {
    if (!blocks.heads.empty()) index_ = at::tensor(blocks.heads, like.options().dtype(at::kLong));
  }
  at::Tensor spread(const at::Tensor& t) const { return index_.defined() ? t.index_select(1, index_) : t; }
  void add(const at::Tensor& sum, const at::Tensor& gradient) const {
    index_.defined() ? sum.index_add_(1, index_, gradient.to(sum.scalar_type())) : sum.add_(gradient);
  }

 private:
  at::Tensor index_;
};

// The result while blocks are still coming.
class Merger {
 public:
  explicit Merger(const Inputs& in) {
    auto sizes = in.q.sizes().vec();
    const auto options = in.q.options().dtype(accumulate_type(in.q.scalar_type()));
    lse_ = at::full({sizes[0], sizes[1], sizes[2]}, kNothing, options);
    std::swap(sizes[1], sizes[2]);  // [b, l, h, f] in memory
    sizes[3] = in.v.size(3);
    out_ = at::zeros(sizes, options).transpose(1, 2);
  }

  void add(const Tile& tile, std::int64_t head, const Partial& part) {
    const auto rows = [&](const at::Tensor& t) { return rows_of(t.narrow(1, head, part.out.size(1)), tile.q); };
    const auto lse = rows(lse_), out = rows(out_);
    const auto sum = at::logaddexp(lse, part.lse);
    const auto share = [&](const at::Tensor& of) {
      return (of - sum).exp_().masked_fill_(sum.eq(kNothing), 0).unsqueeze_(3);
    };
    out.mul_(share(lse)).addcmul_(part.out.to(out.scalar_type()), share(part.lse));
    lse.copy_(sum);
  }

  Forward finish(const at::Tensor& sinks, at::ScalarType type) {
    if (sinks.defined()) {
      const auto sum = at::logaddexp(lse_, sinks.to(lse_.scalar_type()).view({1, -1, 1}));
      out_.mul_((lse_ - sum).exp_().masked_fill_(sum.eq(kNothing), 0).unsqueeze_(3));
      lse_ = sum;
    }
    return {out_.to(type), lse_};
  }

 private:
  at::Tensor out_, lse_;
};

// Some heads at a time, so that a tile's result before the merge stays small beside the whole.
void attend(const Scores& scores, const Tile& tile, const Inputs& in, Merger& merger) {
  const auto groups = in.k.size(1), share = in.q.size(1) / groups;
  const auto bytes =
      in.q.size(0) * tile.q.length * in.v.size(3) * share * static_cast<std::int64_t>(in.q.element_size());
  const bool split = scores.dropout == 0 && bytes * groups > kResultAtOnce;
  const auto at_once =
      split ? std::clamp<std::int64_t>(kResultAtOnce / std::max<std::int64_t>(bytes, 1), 1, groups) : groups;
  for (std::int64_t g = 0; g < groups; g += at_once) {
    const auto count = std::min(at_once, groups - g);
    Scores some = scores;
    if (some.mask.defined() && some.mask.size(1) > 1) some.mask = some.mask.narrow(1, g * share, count * share);
    const Inputs part{in.q.narrow(1, g * share, count * share), in.k.narrow(1, g, count), in.v.narrow(1, g, count)};
    merger.add(tile, g * share, attend_tile(some, tile, part));
  }
}

Inputs of_tile(const Tile& tile, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {rows_of(q, tile.q), rows_of(k, tile.kv), rows_of(v, tile.kv)};
}

bool nothing_to_do(const Inputs& in) { return in.q.size(0) * in.q.size(1) * in.k.size(1) == 0; }

}  // namespace

Forward forward_pass(const Scores& scores, const Blocks& blocks, const Inputs& in, const at::Tensor& sinks) {
  Merger merger(in);
  Plan plan(scores, blocks);
  const auto compute = [&](const std::vector<Tile>& tiles, const at::Tensor& k, const at::Tensor& v) {
    if (tiles.empty()) return;
    const Heads heads(blocks, in.q);
    const auto keys = heads.spread(k), values = heads.spread(v);
    for (const Tile& tile : tiles) attend(scores, tile, of_tile(tile, in.q, keys, values), merger);
  };
  if (!nothing_to_do(in)) {
    Works sent = send_all(plan, blocks, in);
    Block next;
    if (plan.ranks() > 1) next = next_block(plan, blocks, in, 1);
    compute(plan.computed(blocks.me), in.k, in.v);
    for (int turn = 1; turn < plan.ranks(); ++turn) {
      finish(next.works);
      const Block block = std::move(next);
      if (turn + 1 < plan.ranks()) next = next_block(plan, blocks, in, turn + 1);
      compute(in_buffer(plan.computed(plan.before(turn)), block.runs), block.k, block.v);
    }
    finish(sent);
  }
  return merger.finish(sinks, in.q.scalar_type());
}

namespace {

class BackwardPass {
 public:
  BackwardPass(const Scores& scores, const Blocks& blocks, const Inputs& in, const Forward& result,
               const at::Tensor& grad)
      : scores_(scores), blocks_(blocks), in_(in), plan_(scores, blocks), heads_(blocks, in.q) {
    const auto type = accumulate_type(in.q.scalar_type());
    rows_.grad = grad;
    rows_.out = result.out;
    rows_.lse = result.lse.masked_fill(result.lse.eq(kNothing), -kNothing);
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

  // Gradients of the block that was here go home, those of the own block arrive from where that was.
  void give_back(const Block& block, int turn) {
    const int owner = plan_.before(turn);
    if (!block.runs.empty()) {
      const auto dk = zeros(block.k), dv = zeros(block.v);
      compute(in_buffer(plan_.computed(owner), block.runs), block.k, block.v, dk, dv);
      send(blocks_.comm, dk.to(in_.k.scalar_type()), owner, kGradients, returned_works_);
      send(blocks_.comm, dv.to(in_.v.scalar_type()), owner, kGradients, returned_works_);
    }
    add_arrived();
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
