// Gradients that are sums on mesh axes where their leaf is whole (plain data parallelism, norms under sequence
// parallelism) wait for each other and are summed up packed: one collective for all of them, at the end of the backward
// pass or when enough have come.
#pragma once

#include <optional>

#include "dtensor/tensor.h"

namespace dtensor {

// The placements in which `gradient` may wait, given those that it is to end in: sums stay sums on the axes where the
// leaf is whole. Nothing: there is nothing to wait for.
std::optional<Placements> waiting_placements(const DTensor& gradient, const Placements& wanted);

// Before autograd accumulates a gradient that will wait: what is in leaf.grad() is set aside, until take_gradient.
void expect_gradient(const DTensor& leaf);
// After it: false unless this gradient was expected. It leaves leaf.grad(), which is as it was before, and joins those
// that wait; when the pass ends it is there, in placements `wanted`.
bool take_gradient(const DTensor& leaf, const Placements& wanted);

}  // namespace dtensor
