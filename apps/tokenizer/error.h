// Thrown if a tokenizer's file cannot be read or has unsupported features.
#pragma once

#include <stdexcept>

namespace tokenizer {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tokenizer
