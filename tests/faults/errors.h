// What each rank of a run threw.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::test {

// By rank; empty: nothing. No wait of theirs may take `timeout`.
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
  } catch (const std::exception&) {  // one of those
  }
  return errors;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// How many runs of a campaign: `few` in every test run, DTENSOR_FAULTS times as many by hand.
inline int campaign(int few) {
  const char* factor = std::getenv("DTENSOR_FAULTS");
  return few * (factor != nullptr ? std::max(1, std::atoi(factor)) : 1);
}

}  // namespace dtensor::test
