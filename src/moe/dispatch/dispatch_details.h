// What dispatchers share: the dispatcher-specific part of a plan.
#pragma once

#include <c10/util/Exception.h>

#include <any>
#include <memory>

#include "dtensor/moe/dispatch.h"

namespace dtensor::moe {

// Base of dispatchers that require the same number of tokens on all ranks. Not all ranks can detect a violation from
// their own number.
struct NeedsEqualTokens {
  virtual ~NeedsEqualTokens() = default;
};

// Base of dispatchers that move rows and results without arithmetic, so that they serve a BitIdentical scope.
struct MovesRows {
  virtual ~MovesRows() = default;
};

// Base of dispatchers that drop entries. Which ones depends on the other tokens of the call, so microbatches are
// another function than their batch.
struct DropsEntries {
  virtual ~DropsEntries() = default;
};

std::shared_ptr<const Dispatcher> all_gather_dispatcher(const Communicator& ranks);

// Throws if the plan was not prepared by this kind of dispatcher.
template <class Details>
Details& details_of(const DispatchPlan& plan, const char* dispatcher) {
  const auto* details = std::any_cast<std::shared_ptr<Details>>(&plan.details);
  TORCH_CHECK(details != nullptr, dispatcher, ": the plan was not prepared by a dispatcher of this kind");
  return **details;
}

}  // namespace dtensor::moe
