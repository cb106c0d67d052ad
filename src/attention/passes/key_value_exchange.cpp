// Exchanges blocks of keys and values: in turn t each rank receives the block of the rank t before it, directly from
// its owner. Only rows that the receiver's queries attend to are sent.
#include "attention/passes/key_value_exchange.h"

#include <ATen/ATen.h>

namespace dtensor::attention_impl {

std::vector<Tile> ExchangePlan::find(int receiver, int owner) const {
  auto found = tiles_of(blocks_.q[receiver], blocks_.kv[owner], scores_.pattern);
  if (!scores_.has_local_rows && scores_.mask.defined()) drop_fully_masked(found);
  const bool positions = scores_.mask.defined() || scores_.dropout > 0;
  return positions ? found : merge_full_tiles(std::move(found));
}

void ExchangePlan::drop_fully_masked(std::vector<Tile>& tiles) const {
  std::erase_if(tiles, [&](const Tile& tile) { return !mask_sees(scores_, tile); });
}

std::int64_t length_of(const std::vector<Rows>& rows) {
  std::int64_t length = 0;
  for (const Rows& r : rows) length += r.length;
  return length;
}

std::vector<Tile> to_buffer_rows(std::vector<Tile> tiles, const std::vector<Rows>& runs) {
  for (Tile& tile : tiles) {
    for_each_run(runs, [&, local = tile.kv.local](const Rows& run, std::int64_t at) {
      if (local >= run.local && local < run.local + run.length) tile.kv.local = at + local - run.local;
    });
  }
  return tiles;
}

void finish(PendingWorks& works) {
  for (Work& work : works) work.wait();
  works.clear();
}

void send(const Communicator& comm, const at::Tensor& tensor, int peer, Tag tag, PendingWorks& works) {
  if (tensor.numel() > 0) works.push_back(comm.send(tensor, peer, tag));
}

void receive(const Communicator& comm, const at::Tensor& tensor, int peer, Tag tag, PendingWorks& works) {
  if (tensor.numel() > 0) works.push_back(comm.recv(tensor, peer, tag));
}

KeyValueBlock buffer_for(std::vector<Rows> runs, const Inputs& like) {
  auto sizes_of = [&](const at::Tensor& t) {
    return std::vector<std::int64_t>{t.size(0), t.size(1), length_of(runs), t.size(3)};
  };
  return {runs, at::empty(sizes_of(like.k), like.k.options()), at::empty(sizes_of(like.v), like.v.options()), {}};
}

KeyValueBlock receive_next_block(ExchangePlan& plan, const SequenceParts& blocks, const Inputs& in, int turn) {
  const int owner = plan.before(turn);
  KeyValueBlock block = buffer_for(keys_read(plan.tiles(blocks.me, owner)), in);
  if (length_of(block.runs) == 0) return block;
  receive(blocks.comm, block.k, owner, kKeys, block.works);
  receive(blocks.comm, block.v, owner, kKeys, block.works);
  return block;
}

namespace {

at::Tensor packed(const at::Tensor& t, const std::vector<Rows>& runs) {
  if (runs.size() == 1) return rows_of(t, runs.front());
  std::vector<at::Tensor> parts;
  for (const Rows& run : runs) parts.push_back(rows_of(t, run));
  return at::cat(parts, 2);
}

}  // namespace

PendingWorks send_all_blocks(ExchangePlan& plan, const SequenceParts& blocks, const Inputs& in) {
  PendingWorks works;
  for (int turn = 1; turn < plan.ranks(); ++turn) {
    const int receiver = plan.after(turn);
    const auto runs = keys_read(plan.tiles(receiver, blocks.me));
    if (runs.empty()) continue;
    send(blocks.comm, packed(in.k, runs), receiver, kKeys, works);
    send(blocks.comm, packed(in.v, runs), receiver, kKeys, works);
  }
  return works;
}

GroupedHeads::GroupedHeads(const SequenceParts& blocks, const at::Tensor& like) {
  if (!blocks.heads.empty()) index_ = at::tensor(blocks.heads, like.options().dtype(at::kLong));
}

at::Tensor GroupedHeads::expand_to_query_heads(const at::Tensor& keys) const {
  return index_.defined() ? keys.index_select(1, index_) : keys;
}

void GroupedHeads::add(const at::Tensor& sum, const at::Tensor& gradient) const {
  index_.defined() ? sum.index_add_(1, index_, gradient.to(sum.scalar_type())) : sum.add_(gradient);
}

}  // namespace dtensor::attention_impl
