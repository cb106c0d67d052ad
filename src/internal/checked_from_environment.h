// Checked by the environment variable DTENSOR_CHECKED.
#pragma once

#include <optional>

#include "dtensor/export.h"
#include "dtensor/inspect.h"

namespace dtensor {

// The value of DTENSOR_CHECKED (calls or values); nullopt if it is not set. Throws c10::ValueError for another value.
DTENSOR_API std::optional<Checks> checks_from_environment();

// During its lifetime, this thread has the checks that the environment requests. launch() and run_local() open one.
class CheckedFromEnvironment {
 public:
  CheckedFromEnvironment() {
    if (const auto checks = checks_from_environment()) checked_.emplace(*checks);
  }

 private:
  std::optional<Checked> checked_;
};

}  // namespace dtensor
