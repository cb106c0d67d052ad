// In which type sums over ranks are formed. By default a bf16 product that is split over its inner dimension is rounded
// to bf16 on each rank, and the shares are added (in float) and rounded again; a policy rounds once, at the end.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "dtensor/scoped_value.h"

namespace dtensor {

// How reductions over ranks are done.
struct ReducePolicy {
  // kFloat: half types are carried in float until they are reduced; kDouble: float too. Nothing: as the tensors are.
  std::optional<c10::ScalarType> accumulate = {};
};

// For this thread, while it lives: operators whose results are Partial (a contracted dimension that is split, sums,
// means) compute in the wider type, and their results keep the unrounded shares beside those in their own dtype until
// they are reduced. Views and operators that read such results see the unrounded shares too. Costs their memory, and
// the bytes of the wider type where such a share is reduced. Backward passes count if they start inside the
// scope. All ranks must agree.
class DTENSOR_API ReduceScope {
 public:
  explicit ReduceScope(ReducePolicy policy);

  // The one in force on this thread.
  static ReducePolicy current();

 private:
  ScopedValue<ReducePolicy> scope_;
};

}  // namespace dtensor
