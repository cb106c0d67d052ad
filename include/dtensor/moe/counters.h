// How often a mixture of experts took the ways that save work: counted where somebody asks for it.
#pragma once

#include <cstdint>

#include "dtensor/scoped_value.h"

namespace dtensor {

// Of the forward passes that ran while a MoeCounting lived, those of recomputation included.
struct MoeCounters {
  // Forward passes.
  std::int64_t passes = 0;
  std::int64_t histograms = 0;         // entries were counted by expert
  std::int64_t sorts = 0;              // entries were put in order of experts
  std::int64_t kept_choices = 0;       // experts, counts and order were those kept for inputs of this size
  std::int64_t kept_plans = 0;         // and so was the plan of the exchange
  std::int64_t equal_exchanges = 0;    // rows were exchanged without counts
  std::int64_t packed_weights = 0;     // experts ran on packed weights, in two batched products
  std::int64_t aligned_passes = 0;     // experts ran on groups padded to blocks, whose sizes the host did not know
  std::int64_t aligned_rows = 0;       // rows of those, padding included
  std::int64_t in_place_combines = 0;  // results were added into what a shared expert had made
};

// While it lives, layers that run on this thread count into `counters`, also in recomputation. The innermost counts.
class MoeCounting {
 public:
  explicit MoeCounting(MoeCounters& counters) : scope_(&counters) {}

 private:
  ScopedValue<MoeCounters*> scope_;
};

}  // namespace dtensor
