// What does not fit between what is wanted and what is there: all of it in one error, with near misses.
#pragma once

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::files {

struct LoadProblems {
  std::vector<std::string> missing, unexpected;   // names
  std::vector<std::string> mismatched;            // sentences
  std::vector<std::string> requested, available;  // all names, for near misses

  // Throws a c10::ValueError on every rank where there are any on one: ranks may have asked for other names.
  // Collective.
  void raise(const Communicator& ranks, const std::string& what) const;

 private:
  std::string str() const;  // empty: none
};

}  // namespace dtensor::files
