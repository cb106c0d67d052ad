// Strategies of one call: per mesh axis all-Replicate, one sharded factor, or one group of Partial operands; what each
// means for every tensor's placements; and the choice between them by price.
#pragma once

#include <optional>
#include <string>

#include "redistribute/plan/plan.h"
#include "sharding_prop/strategies/problem.h"

namespace dtensor {

struct AxisChoice {
  enum class Kind : std::uint8_t { replicate, factor, group };
  Kind kind = Kind::replicate;
  int index = -1;               // of the factor or group
  Placement split = Shard(0);   // factor: how it is split (chunks, strided, ragged), as if it were dimension 0
  ReduceOp op = ReduceOp::sum;  // group
  friend bool operator==(const AxisChoice&, const AxisChoice&) = default;
};

// One entry per mesh axis, from the left; shorter while axes are still undecided.
using Assignment = std::vector<AxisChoice>;

// Placements of the tensor on the decided axes, on the others `rest`. Nothing where no placement says what the
// assignment means.
std::optional<Placements> operand_placements(const Problem& p, const OperandState& operand, const Assignment& chosen,
                                             const Placements& rest);
std::optional<Placements> result_placements(const Problem& p, std::size_t result, const Assignment& chosen,
                                            const Placements& rest);

struct Candidate {
  AxisChoice choice;
  double price = 0;
  int changes = 0;                   // operands whose placement on this axis changes
  int unpinned = 0;                  // a bit for each written operand that would change; the first weighs most
  std::vector<Placements> operands;  // with the axes to the right as they are now
};

// The candidates for the axis that follows `chosen`, in the order of preference among equals.
std::vector<Candidate> candidates(const Problem& p, const Assignment& chosen);
// Index of the best; -1 for none.
int cheapest(const std::vector<Candidate>& list);

// All axes. `log`, if given, receives the candidates as text.
Assignment choose(const Problem& p, std::string* log = nullptr);

std::string describe(const Problem& p, const AxisChoice& choice);

}  // namespace dtensor
