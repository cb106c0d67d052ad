// Splits a call into the parts for which strategies are chosen: one for most operators, one per list position for list
// operators, each on its own mesh.
#pragma once

#include <deque>

#include "sharding_prop/rule_book/resolve.h"
#include "sharding_prop/strategies/bound_rule.h"

namespace dtensor {

// A part of a call with one decision.
struct CallPart {
  OpCall call;
  std::vector<int> operands;  // indices into the operands of the call
  // indices into the outputs of the call; -1: a written operand of an operator without returns
  std::vector<int> results;
  // Index of an earlier part with equal operands and results, or -1. A part that equals an earlier one has no bound
  // rule.
  int like = -1;
  BoundRule bound_rule;
};

// Length of the longest list of tensors.
int list_length(const OpCall& call);

// The operand that a (flattened) return is, or is a view of; -1 for a new tensor.
struct ResultAlias {
  int operand = -1;
  bool write = false;
};
std::vector<ResultAlias> result_aliases(const OpCall& call);

// A deque, since bound rules point into their parts.
std::deque<CallPart> split_call(const OpCall& call);

// Restores the operand's own placements where they are equivalent to the decided ones. This applies to storage flags of
// shards that the rule reads, Partials whose values are unused, and ignored operands.
void restore_operand_placements(const BoundRule& p, std::size_t index, Placements& placements);

}  // namespace dtensor
