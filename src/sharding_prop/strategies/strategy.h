// Strategies of one call. For each mesh axis: all Replicate, one sharded factor, or one group of Partial operands.
// Computes the placements of each tensor and chooses by cost.
#pragma once

#include <optional>
#include <string>

#include "redistribute/plan/plan.h"
#include "sharding_prop/strategies/axis_choices.h"

namespace dtensor {

// Placements of the tensor: decided axes from `chosen`, others from `rest`. Nothing if no placement expresses the
// assignment.
std::optional<Placements> operand_placements(const BoundRule& p, const OperandState& operand, const Assignment& chosen,
                                             const Placements& rest);
std::optional<Placements> result_placements(const BoundRule& p, std::size_t result, const Assignment& chosen,
                                            const Placements& rest);

struct Candidate {
  AxisChoice choice;
  double cost = 0;
  int changes = 0;                   // number of operands whose placement on this axis changes
  int unpinned = 0;                  // a bit for each written operand that changes; the first is the most significant
  std::vector<Placements> operands;  // placements, with later axes unchanged
};

// The candidates for the axis after `chosen`, in order of preference among equal costs.
std::vector<Candidate> candidates(const BoundRule& p, const Assignment& chosen);
// Index of the best candidate; -1 if there is none.
int cheapest(const std::vector<Candidate>& list);

// Decides all axes. `log`, if given, receives the candidates as text.
Assignment choose(const BoundRule& p, std::string* log = nullptr);

std::string describe(const BoundRule& p, const AxisChoice& choice);

}  // namespace dtensor
