// Dijkstra's algorithm over placement states.
#pragma once

#include "redistribute/plan/split_layout.h"

namespace dtensor {

// The cheapest plan; among equally cheap ones that with fewer and simpler edges, and then the first found.
RedistributePlan search_plan(const Placements& from, const Placements& to, const TensorGeometry& geometry);

}  // namespace dtensor
