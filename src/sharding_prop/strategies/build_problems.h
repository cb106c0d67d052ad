// From a call to the problems that the strategies are chosen for: one for most operators, one per list position for
// list operators, each on its own mesh.
#pragma once

#include <deque>

#include "sharding_prop/rule_book/resolve.h"
#include "sharding_prop/strategies/problem.h"

namespace dtensor {

// The part of a call that is decided together.
struct CallPart {
  OpCall call;
  std::vector<int> operands;  // indices into the whole call's operands
  std::vector<int> results;   // indices into its outputs; -1: a mutated operand of an operator that returns nothing
  int like = -1;  // an earlier piece whose operands and results are equal: this one has no problem of its own
  Problem problem;
};

// Of its longest list of tensors.
int list_length(const OpCall& call);

// Operand that return `result` (flattened) is, or is a view of; -1: fresh.
struct ResultAlias {
  int operand = -1;
  bool write = false;
};
std::vector<ResultAlias> result_aliases(const OpCall& call);

// A deque, since problems point into their piece.
std::deque<CallPart> split_call(const OpCall& call);

// Puts the operand's own placements back where they are what was decided, in other words: storage flags of shards that
// the rule looked at, Partials that are not read, operands that are given as they are.
void restore_operand_placements(const Problem& p, std::size_t index, Placements& placements);

}  // namespace dtensor
