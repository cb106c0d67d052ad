// What does not fit between what is wanted and what is there: all of it in one error, with near misses.
#pragma once

#include <string>
#include <vector>

namespace dtensor::files {

struct Problems {
  std::vector<std::string> missing, unexpected;  // names
  std::vector<std::string> mismatched;           // sentences
  std::vector<std::string> here, there;          // all names, for near misses

  void raise(const std::string& what) const;  // throws c10::ValueError where there are any
};

}  // namespace dtensor::files
