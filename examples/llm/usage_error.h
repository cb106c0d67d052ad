// What the user asked for and cannot have: one line and exit status 2.
#pragma once

#include <stdexcept>

namespace llm {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace llm
