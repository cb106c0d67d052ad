// Defers the reduction of gradients that are Partial on axes where their leaf is replicated (data parallelism, norms
// under sequence parallelism). They are summed in one packed collective, at the end of the backward pass or when enough
// bytes have accumulated.
#pragma once

#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"

namespace dtensor {

// true: the reduction of `gradient` is deferred, and leaf.grad() has placements `wanted` when the pass ends.
// false: there is nothing to defer. `earlier` is part of the gradient, and is moved from only if the reduction is
// deferred.
bool defer_reduction(const DTensor& leaf, const DTensor& gradient, const Placements& wanted,
                     UnsynchronizedGradient& earlier);

}  // namespace dtensor
