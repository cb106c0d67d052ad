// Parts of the router: the choice by experts and the losses.
#pragma once

#include "dtensor/moe/router.h"

namespace dtensor::moe {

// Rows of the members of `some` among those of `all`; less where one is missing.
std::vector<std::int64_t> indices_among(const Communicator& some, const Communicator& all);

// Rows of each rank of a group, of those before this one, and of all.
struct RowCounts {
  std::vector<std::int64_t> of_each;
  std::int64_t before = 0, total = 0;
};
// By an exchange; no `ranks`: this one alone. Collective.
RowCounts rows_of_ranks(std::int64_t here, const Communicator& ranks);
// Tokens: by the numbers of entries where every place has an expert, else by an exchange. Collective.
RowCounts tokens_of_ranks(const Routing& routing, const Communicator& ranks);

// [tokens, choices], padded with o.experts; choices: the most experts that one token here has. Collective.
at::Tensor choose_by_expert(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout);

// This rank's share of all losses that the options ask for; undefined if none. Collective over layout.ranks for
// aux_loss, over layout.sequence_ranks for sequence_aux_loss.
at::Tensor router_loss(const at::Tensor& logits, const Routing& routing, const RouterOptions& o,
                       const TokenLayout& layout);

}  // namespace dtensor::moe
