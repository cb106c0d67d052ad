// Defers the reduction of gradients that are Partial on axes where their leaf is replicated (data parallelism, norms
// under sequence parallelism). They are summed in one packed collective, at the end of the backward pass or when enough
// bytes have accumulated.
#pragma once

#include <optional>

#include "internal/gradient_reduction.h"

namespace dtensor {

// The placements in which `gradient` is deferred: Partial of one kind stays on the axes where the leaf is replicated.
// No value: there is nothing to defer.
std::optional<Placements> deferred_placements(const DTensor& leaf, const DTensor& gradient, const Placements& wanted);

// `gradient` has deferred_placements() and memory of its own. It is reduced and accumulated when the pass ends at the
// latest.
void defer_reduction(UnreducedGradient gradient);

}  // namespace dtensor
