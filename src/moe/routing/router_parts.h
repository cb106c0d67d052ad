// Parts of the router: expert choice, row counts and losses.
#pragma once

#include "dtensor/moe/router.h"

namespace dtensor::moe {

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

}  // namespace dtensor::moe
