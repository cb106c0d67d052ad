// Where the operands of attention are while it is computed, mesh axis by mesh axis, and what each way would cost.
#pragma once

#include <string>
#include <vector>

#include "attention/passes/tiles.h"
#include "dtensor/attention.h"
#include "placement/spec.h"

namespace dtensor::attention_impl {

struct Operands {
  SpecPtr q, k, v;  // as they are; [B, H, L, E], [B, G, S, E], [B, G, S, F] on one mesh, plain ones Replicate
};

struct AttentionLayout {
  Placements q;       // of queries, results and their gradients
  Placements kv;      // of keys and values where they wait, between the passes too
  Placements result;  // q's, but back in the sequence's split where heads were exchanged
  Placements used;    // of keys and values where a block of them is computed: those of `kv`, less the axes that gather
  AxisMask ring = 0, gather = 0, ulysses = 0;  // the axes that split the sequence
  AxisMask merge = 0;  // those that split keys alone: every rank has all queries, and results of their keys are merged
};

// Axes of more than one rank that split the sequence of some operand.
AxisMask sequence_axes(const Operands& operands);

// The cheapest layout, or the one that `strategy` asks for: the same on every rank. `text`, if given, receives
// candidates and prices.
AttentionLayout search_layout(const Operands& operands, const Pattern& pattern, AttentionStrategy strategy,
                              std::string* text = nullptr);
// The same, remembered by this thread: a search looks at every rank of the mesh.
AttentionLayout cached_layout(const Operands& operands, const Pattern& pattern, AttentionStrategy strategy);

// What has to move before attention can begin because operands do not lie as one layout has them. What attention itself
// exchanges is no part of it, heads for rows (ulysses) neither.
struct InputMoves {
  struct Operand {
    const char* name;
    std::string from;  // its spec
    Placements to;
  };
  std::int64_t bytes = 0;  // received by the ranks that receive most
  std::vector<Operand> operands;
};
InputMoves moves_to_layout(const AttentionLayout& layout, const Operands& operands);

}  // namespace dtensor::attention_impl
