// What a strategy has put into a plan.
#pragma once

#include <c10/util/Exception.h>

#include "dtensor/moe/dispatch.h"

namespace dtensor::moe {

// A dispatcher that relies on equally many tokens on all ranks. A rank sees by its own number of them that this is not
// so, but others may not see it by theirs.
struct NeedsEqualTokens {
  virtual ~NeedsEqualTokens() = default;
};

// Throws where another kind of dispatcher made the plan, or nobody.
template <class Details>
Details& details_of(const DispatchPlan& plan, const char* dispatcher) {
  auto* details = dynamic_cast<Details*>(plan.details.get());
  TORCH_CHECK(details != nullptr, dispatcher, ": the plan was not prepared by a dispatcher of this kind");
  return *details;
}

}  // namespace dtensor::moe
