// Mismatches between requested and stored tensors, reported in one error with similar names.
#pragma once

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::files {

struct LoadProblems {
  std::vector<std::string> missing, unexpected;   // names
  std::vector<std::string> mismatched;            // sentences
  std::vector<std::string> requested, available;  // all names, for suggestions

  // Throws a c10::ValueError on all ranks if any rank has mismatches; ranks may request different names. Collective.
  void raise(const Communicator& ranks, const std::string& what) const;

 private:
  std::string str() const;  // empty: none
};

}  // namespace dtensor::files
