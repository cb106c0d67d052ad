// The reduction of one unit's gradients.
#pragma once

#include <compare>
#include <vector>

#include "internal/gradient_hooks.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

// On an axis of one rank all placements are equivalent: returns those of the reduced gradient there, so that gradients
// of several passes can be added.
Placements equivalent_placements(const Parameter& p, const DTensor& gradient);
DTensor with_equivalent_placements(const Parameter& p, const DTensor& gradient);  // without a graph

// The same gradient with sums for averages, without communication and without a graph.
DTensor as_sums(const DTensor& gradient);

struct PendingReduction {
  Parameter* p;
  DTensor parameter;
  at::Tensor local;       // the local gradient
  Placements placements;  // current placements of the gradient
  UnsynchronizedGradient earlier;
};

// Gradients of equal kind are reduced together.
struct ReductionKind {
  at::ScalarType dtype;
  ReduceOp op;
  auto operator<=>(const ReductionKind&) const = default;
};

// One reduce-scatter of gradients of one kind.
struct ReduceScatter {
  std::vector<PendingReduction*> items;
  std::vector<at::Tensor> outputs, inputs;
  Work work;
};

// One all-reduce of gradients of one kind.
struct AllReduce {
  std::vector<PendingReduction*> items;
  std::vector<at::Tensor> locals;
  Work work;
};

// Constructed from the pending gradients; starts the reduce-scatter. start_all_reduces awaits it, sums over the other
// axes and starts the all-reduce over replicas; finish awaits that and accumulates.
struct GradientReduction {
  // `arriving`: the last gradient to arrive, while its reduce hook runs.
  GradientReduction(FsdpUnit::Impl& of, const at::Tensor& arriving);
  int start_all_reduces(bool over_replicas);  // returns the number of collectives
  void finish();
  void discard();  // instead of finish: awaits active collectives and ignores their results

  FsdpUnit::Impl& unit;
  NamedCallScope::Name name;
  std::int64_t bytes = 0;  // unreduced
  std::vector<PendingReduction> items;
  std::vector<ReduceScatter> scatters;
  std::vector<AllReduce> replica_sums;
};

}  // namespace dtensor::fsdp
