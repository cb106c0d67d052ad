// A tokenizer's file that cannot be read, or asks for what is not served.
#pragma once

#include <stdexcept>

namespace tokenizer {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tokenizer
