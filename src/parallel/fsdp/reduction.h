// The gradients of one unit on their way.
#pragma once

#include <compare>
#include <vector>

#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

// An axis of one rank holds everything, whatever the placement calls it: called as the reduced gradient will have it,
// so that gradients of several passes are of one kind.
Placements names_of(const Parameter& p, const DTensor& gradient);
DTensor named_alike(const Parameter& p, const DTensor& gradient);  // without a graph

struct Item {
  Parameter* p;
  DTensor parameter;
  at::Tensor local;       // of the gradient
  Placements placements;  // of the gradient, as far as it is
  double scale;           // of the reduced gradient
  EarlierGradient earlier;
};

// How gradients are reduced together.
struct Kind {
  at::ScalarType dtype;
  ReduceOp op;
  auto operator<=>(const Kind&) const = default;
};

// One reduce-scatter: gradients of one kind.
struct Scatter {
  std::vector<Item*> items;
  std::vector<at::Tensor> outputs, inputs;
  Work work;
};

// One all-reduce: gradients of one kind.
struct Sum {
  std::vector<Item*> items;
  std::vector<at::Tensor> locals;
  Work work;
};

// Made of what is pending, with its reduce-scatter under way. sum_up waits for that, sums over the other axes and
// starts the sum over replicas; finish waits for it and accumulates.
struct Reduction {
  // `arriving`: the gradient with which the unit is complete, while its reduce hook runs.
  Reduction(FsdpUnit::Impl& of, const at::Tensor& arriving);
  int sum_up(bool over_replicas);  // how many collectives
  void finish();
  void discard();  // instead: what is under way ends, but counts for nothing

  FsdpUnit::Impl& unit;
  std::int64_t bytes = 0;  // unreduced
  std::vector<Item> items;
  std::vector<Scatter> scatters;
  std::vector<Sum> replica_sums;
};

}  // namespace dtensor::fsdp
