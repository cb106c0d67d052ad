// The gradients of one unit on their way.
#pragma once

#include <compare>
#include <vector>

#include "internal/gradient_hooks.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

// An axis of one rank holds everything, whatever the placement calls it: called as the reduced gradient will have it,
// so that gradients of several passes are of one kind.
Placements equivalent_placements(const Parameter& p, const DTensor& gradient);
DTensor with_equivalent_placements(const Parameter& p, const DTensor& gradient);  // without a graph

struct PendingReduction {
  Parameter* p;
  DTensor parameter;
  at::Tensor local;       // of the gradient
  Placements placements;  // of the gradient, as far as it is
  double scale;           // of the reduced gradient
  UnsynchronizedGradient earlier;
};

// How gradients are reduced together.
struct ReductionKind {
  at::ScalarType dtype;
  ReduceOp op;
  auto operator<=>(const ReductionKind&) const = default;
};

// One reduce-scatter: gradients of one kind.
struct ReduceScatter {
  std::vector<PendingReduction*> items;
  std::vector<at::Tensor> outputs, inputs;
  Work work;
};

// One all-reduce: gradients of one kind.
struct AllReduce {
  std::vector<PendingReduction*> items;
  std::vector<at::Tensor> locals;
  Work work;
};

// Made of what is pending, with its reduce-scatter under way. start_all_reduces waits for that, sums over the other
// axes and starts the sum over replicas; finish waits for it and accumulates.
struct GradientReduction {
  // `arriving`: the gradient with which the unit is complete, while its reduce hook runs.
  GradientReduction(FsdpUnit::Impl& of, const at::Tensor& arriving);
  int start_all_reduces(bool over_replicas);  // how many collectives
  void finish();
  void discard();  // instead: what is under way ends, but counts for nothing

  FsdpUnit::Impl& unit;
  std::int64_t bytes = 0;  // unreduced
  std::vector<PendingReduction> items;
  std::vector<ReduceScatter> scatters;
  std::vector<AllReduce> replica_sums;
};

}  // namespace dtensor::fsdp
