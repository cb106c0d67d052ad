// The gradients of one unit on their way.
#pragma once

#include <vector>

#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

struct Item {
  Parameter* p;
  DTensor parameter;
  at::Tensor local;       // of the gradient
  Placements placements;  // of the gradient, as far as it is
};

// One reduce-scatter: gradients of one dtype.
struct Scatter {
  std::vector<Item*> items;
  std::vector<at::Tensor> outputs, inputs;
  Work work;
};

struct Reduction {
  FsdpUnit::Impl* unit = nullptr;
  std::int64_t bytes = 0;  // unreduced
  std::vector<Item> items;
  std::vector<Scatter> scatters;
};

}  // namespace dtensor::fsdp
