// Exceptions of each rank of a run.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::test {

// Returns the exception text of each rank, or "". No wait may take `timeout`.
inline std::vector<std::string> errors_of(int ranks, const std::function<void(Communicator)>& body,
                                          std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  try {
    run_local(ranks,
              [&](Communicator world) {
                try {
                  body(world);
                } catch (const std::exception& e) {
                  errors[static_cast<std::size_t>(world.rank())] = e.what();
                  throw;
                }
              },
              {.timeout = timeout});
  } catch (const std::exception&) {  // already recorded above
  }
  return errors;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Number of runs of a campaign: `few` in every test run, multiplied by DTENSOR_FAULTS.
inline int campaign(int few) {
  const char* factor = std::getenv("DTENSOR_FAULTS");
  return few * (factor != nullptr ? std::max(1, std::atoi(factor)) : 1);
}

}  // namespace dtensor::test
