// Parts of the router: expert choice, row counts, capacities and losses.
#pragma once

#include <memory>
#include <vector>

#include "dtensor/moe/dispatch.h"
#include "dtensor/moe/router.h"

namespace dtensor {

// Entry counts of all ranks, exchanged once on first use.
class SharedCounts {
 public:
  explicit SharedCounts(at::Tensor local) : local_(std::move(local)) {}
  // Counts of this rank.
  const at::Tensor& local() const { return local_; }
  // [ranks, experts], on the CPU. The first call for `ranks` is collective; begin() starts it asynchronously.
  at::Tensor of_ranks(const Communicator& ranks);
  at::Tensor on_device(const Communicator& ranks);  // same on the counts' device, without host synchronization
  void begin(const Communicator& ranks);

 private:
  struct Exchange {
    Communicator ranks;
    at::Tensor counts, host;
    Work work;
  };
  Exchange& exchange(const Communicator& ranks);
  static at::Tensor rows_of(const at::Tensor& counts, const Exchange& done, const Communicator& ranks);
  at::Tensor local_;
  std::vector<Exchange> exchanges_;
};

// The strategy of a choice. Experts in turn (round_robin) do not depend on scores: experts, counts and order are cached
// for each number of tokens and position in the batch.
std::shared_ptr<const RoutingStrategy> make_strategy(RouterChoice choice);

// x [tokens, D], gate [experts, D]; computed in float or wider. `bias` [experts] is added to the scores for the choice
// only. Collective over layout.ranks if the options need it, independent of the data.
Routing route(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& options, const TokenLayout& layout = {},
              const at::Tensor& bias = {});
// The same from the products of the gate, x gate^T. In a BitIdentical scope they are a DTensor sharded by tokens, as
// are scores and loss; experts and weights are those of this rank's tokens.
Routing route_logits(const at::Tensor& logits, const RouterOptions& options, const TokenLayout& layout,
                     const at::Tensor& bias);

// Range of this rank's tokens in the batch.
struct TokenRange {
  // Tokens of all ranks, and tokens of preceding ranks.
  std::int64_t total = 0, first = 0;
};
// Range of the tokens that `routing` describes. May be collective.
TokenRange token_range(const Routing& routing, const TokenLayout& layout);

// The number of rows that each rank sends to this one, given those that this rank sends. Collective.
std::vector<std::int64_t> exchange_splits(at::IntArrayRef input_splits, const Communicator& comm);

// Unassigns entries over capacity (expert = expert_count) and returns their number on this rank. Collective over
// layout.ranks.
std::int64_t drop_over_capacity(Routing& routing, const TokenLayout& layout, const CapacityOptions& options);

namespace moe {

// The products of the gate for x [..., D], in float or wider.
at::Tensor gate_logits(const at::Tensor& x, const at::Tensor& gate);

// Indices in `all` of the ranks of `some`, without ranks that `all` lacks.
std::vector<std::int64_t> indices_among(const Communicator& some, const Communicator& all);

// Rows of each rank of a group, of the preceding ranks, and of all.
struct RowCounts {
  std::vector<std::int64_t> of_each;
  std::int64_t before = 0, total = 0;
};
// Exchanges the numbers of rows; without `ranks` only this rank. Collective.
RowCounts rows_of_ranks(std::int64_t here, const Communicator& ranks);
// Numbers of tokens, from the counts of entries if every entry has an expert, else by an exchange. Collective.
RowCounts tokens_of_ranks(const Routing& routing, const Communicator& ranks);

// [tokens, choices], padded with o.experts; choices is the largest number of experts of a token here. Collective.
at::Tensor choose_by_expert(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout);

// This rank's part of all losses in the options; undefined if none. Collective over layout.ranks for aux_loss, over
// layout.sequence_ranks for sequence_aux_loss.
at::Tensor router_loss(const at::Tensor& logits, const Routing& routing, const RouterOptions& o,
                       const TokenLayout& layout);

}  // namespace moe
}  // namespace dtensor
