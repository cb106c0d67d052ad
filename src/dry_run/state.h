// What operators of a dry run read and count.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "dry_run/trace.h"
#include "dtensor/dry_run.h"
#include "internal/scoped_value.h"

namespace dtensor::dry {

struct State {
  std::optional<double> number;  // DryRunOptions::number
  std::map<std::string, DryRunReport::OperatorCount> operators;
  std::optional<TraceRecorder> trace;  // if it is recorded
};
using StatePtr = std::shared_ptr<State>;

// While it lives, operators of this thread are simulated.
class SimulationScope {
 public:
  explicit SimulationScope(StatePtr state);

 private:
  ScopedValue<StatePtr> scope_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

// Null outside a dry run.
State* current_state();

}  // namespace dtensor::dry
