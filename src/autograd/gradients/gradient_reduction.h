// Gradients that are sums on mesh axes where their leaf is whole (plain data parallelism, norms under sequence
// parallelism) wait for each other and are summed up packed: one collective for all of them, at the end of the backward
// pass or when enough have come.
#pragma once

#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"

namespace dtensor {

// True: what `gradient` is brought to waits, and when the pass ends it is in leaf.grad(), in placements `wanted`.
// False: there is nothing to wait for. `earlier` is part of the gradient, and is taken only where that waits.
bool defer_reduction(const DTensor& leaf, const DTensor& gradient, const Placements& wanted,
                     UnsynchronizedGradient& earlier);

}  // namespace dtensor
