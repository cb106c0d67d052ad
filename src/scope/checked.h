// What a whole run is checked for, unasked by the program.
#pragma once

#include <optional>

#include "dtensor/inspect.h"

namespace dtensor {

// DTENSOR_CHECKED=calls or values; none: not set. A ValueError for anything else.
std::optional<Checks> checks_of_environment();

// While it lives, this rank's thread is under what the environment asks for.
class CheckedByEnvironment {
 public:
  CheckedByEnvironment() {
    if (const auto checks = checks_of_environment()) checked_.emplace(*checks);
  }

 private:
  std::optional<Checked> checked_;
};

}  // namespace dtensor
