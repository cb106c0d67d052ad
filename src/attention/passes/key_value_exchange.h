// Plan of the messages of each turn: blocks of keys and values, and their gradients in backward.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "attention/passes/passes.h"

namespace dtensor::attention_impl {

class ExchangePlan {
 public:
  ExchangePlan(const Scores& scores, const SequenceParts& blocks) : scores_(scores), blocks_(blocks) {}

  int ranks() const { return static_cast<int>(blocks_.q.size()); }
  int before(int turn) const { return (blocks_.me + ranks() - turn) % ranks(); }
  int after(int turn) const { return (blocks_.me + turn) % ranks(); }

  // The tiles for the queries of `receiver` and the keys of `owner`. The same on both ranks.
  const std::vector<Tile>& tiles(int receiver, int owner) {
    const auto [entry, is_new] = known_.try_emplace({receiver, owner});
    if (is_new) entry->second = find(receiver, owner);
    return entry->second;
  }
  // The tiles for this rank's queries, without tiles that are fully masked by its local mask.
  std::vector<Tile> computed(int owner) {
    auto found = tiles(blocks_.me, owner);
    if (scores_.has_local_rows && scores_.mask.defined()) drop_fully_masked(found);
    return found;
  }

 private:
  std::vector<Tile> find(int receiver, int owner) const;
  void drop_fully_masked(std::vector<Tile>& tiles) const;

  const Scores& scores_;
  const SequenceParts& blocks_;
  std::map<std::pair<int, int>, std::vector<Tile>> known_;  // cached, because finding tiles reads the mask
};

std::int64_t length_of(const std::vector<Rows>& rows);

// Calls fn(rows of the block, first row in a packed buffer of these rows).
template <class F>
void for_each_run(const std::vector<Rows>& runs, const F& fn) {
  std::int64_t at = 0;
  for (const Rows& run : runs) {
    fn(run, at);
    at += run.length;
  }
}

// Converts tiles to row indices in a packed buffer of `runs`.
std::vector<Tile> to_buffer_rows(std::vector<Tile> tiles, const std::vector<Rows>& runs);

inline at::Tensor rows_of(const at::Tensor& t, const Rows& rows) { return t.narrow(2, rows.local, rows.length); }

using PendingWorks = std::vector<Work>;
void finish(PendingWorks& works);

// Tags of messages: blocks and gradients are sent between the same ranks in an order that depends on the rank.
enum Tag : int { kKeys, kGradients };

// No message for empty tensors.
void send(const Communicator& comm, const at::Tensor& tensor, int peer, Tag tag, PendingWorks& works);
void receive(const Communicator& comm, const at::Tensor& tensor, int peer, Tag tag, PendingWorks& works);

// Keys and values, or their gradients, of another rank's block.
struct KeyValueBlock {
  std::vector<Rows> runs;
  at::Tensor k, v;
  PendingWorks works;
};

KeyValueBlock buffer_for(std::vector<Rows> runs, const Inputs& like);
// Starts to receive the block of this turn.
KeyValueBlock receive_next_block(ExchangePlan& plan, const SequenceParts& blocks, const Inputs& in, int turn);
// Sends this rank's keys and values to all ranks that read them.
PendingWorks send_all_blocks(ExchangePlan& plan, const SequenceParts& blocks, const Inputs& in);

// Expands key heads to query heads, and reduces their gradients.
class GroupedHeads {
 public:
  GroupedHeads(const SequenceParts& blocks, const at::Tensor& like);
  at::Tensor expand_to_query_heads(const at::Tensor& keys) const;
  void add(const at::Tensor& sum, const at::Tensor& gradient) const;

 private:
  at::Tensor index_;
};

inline Inputs of_tile(const Tile& tile, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return {rows_of(q, tile.q), rows_of(k, tile.kv), rows_of(v, tile.kv)};
}

inline bool is_empty_problem(const Inputs& in) { return in.q.size(0) * in.q.size(1) * in.k.size(1) == 0; }

}  // namespace dtensor::attention_impl
