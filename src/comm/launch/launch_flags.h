// What launch() reads from the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "comm/launch/launchers.h"

namespace dtensor {

// The launch options are invalid: printed in one line, exit status 2.
class LaunchError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The value of an environment variable; empty if it is not set.
std::string environment_variable(const char* name);
// The number that `text` consists of, if it is one.
std::optional<int> number(std::string_view text);

struct LaunchFlags {
  int ranks = 0;          // --ranks; 0: not given
  std::int64_t mesh = 0;  // product of --mesh; 0: not given
  std::string backend;    // --backend; empty: automatic
  // --dtensor-simulate N[:r], or DTENSOR_SIMULATE: a dry run, which reads --backend, but not the other flags. 0 ranks:
  // none.
  DryRunRequest simulated;
};

LaunchFlags parse_launch_flags(int argc, const char* const* argv);

}  // namespace dtensor
