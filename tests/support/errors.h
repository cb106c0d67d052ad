// Texts of expected errors.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace dtensor::test {

// The message of the c10::Error that `run` throws, without its backtrace; "no error" if it throws none.
template <class Run>
std::string error_of(Run&& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace dtensor::test
