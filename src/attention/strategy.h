// Placements of the operands of attention during the computation, by mesh axis, and the cost of each strategy.
#pragma once

#include <string>
#include <vector>

#include "attention/passes/tiles.h"
#include "dtensor/attention.h"
#include "placement/spec.h"

namespace dtensor::attention_impl {

struct Operands {
  SpecPtr q, k, v;  // given specs on one mesh: [B, H, L, E], [B, G, S, E], [B, G, S, F]; regular tensors are Replicate
};

struct AttentionLayout {
  Placements q;       // placements of queries, results and their gradients
  Placements kv;      // placements of keys and values at rest, also between the passes
  Placements result;  // like q, but sharded along the sequence again after ulysses
  Placements used;    // keys and values during the computation: `kv` without the axes that gather
  AxisMask ring = 0, gather = 0, ulysses = 0;  // axes that shard the sequence, by strategy
  AxisMask merge = 0;  // axes that shard keys only: all ranks have all queries, and results are merged
};

// Axes with more than one rank that shard the sequence of any operand.
AxisMask sequence_axes(const Operands& operands);

// The cheapest layout, or the one for `strategy`: the same on all ranks. `text`, if given, receives all candidates and
// their costs.
AttentionLayout search_layout(const Operands& operands, const Pattern& pattern, AttentionStrategy strategy,
                              std::string* text = nullptr);
// Same with a cache per thread, because a search iterates over all ranks of the mesh.
AttentionLayout cached_layout(const Operands& operands, const Pattern& pattern, AttentionStrategy strategy);

// The redistribution that is needed before attention because operands have other placements. Excludes the communication
// of attention itself and the ulysses exchange of heads and rows.
struct InputMoves {
  struct Operand {
    const char* name;
    std::string from;  // its spec
    Placements to;
  };
  std::int64_t bytes = 0;  // received by the rank that receives most
  std::vector<Operand> operands;
};
InputMoves moves_to_layout(const AttentionLayout& layout, const Operands& operands);

}  // namespace dtensor::attention_impl
