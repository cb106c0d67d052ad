// The dispatcher-specific part of a plan.
#pragma once

#include <c10/util/Exception.h>

#include "dtensor/moe/dispatch.h"

namespace dtensor::moe {

// Base of dispatchers that require the same number of tokens on all ranks. Not all ranks can detect a violation from
// their own number.
struct NeedsEqualTokens {
  virtual ~NeedsEqualTokens() = default;
};

// Throws if the plan was not prepared by this kind of dispatcher.
template <class Details>
Details& details_of(const DispatchPlan& plan, const char* dispatcher) {
  auto* details = dynamic_cast<Details*>(plan.details.get());
  TORCH_CHECK(details != nullptr, dispatcher, ": the plan was not prepared by a dispatcher of this kind");
  return *details;
}

}  // namespace dtensor::moe
