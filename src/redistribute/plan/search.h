// Dijkstra's algorithm over placement states.
#pragma once

#include "redistribute/plan/split_layout.h"

namespace dtensor {

// The cheapest way; among equally cheap ones the one with fewer and simpler edges, and then the one found first.
RedistributePlan search_plan(const Placements& from, const Placements& to, const TensorGeometry& geometry);

}  // namespace dtensor
