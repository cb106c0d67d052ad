// Files that somebody made to hurt: headers and JSON changed piece by piece, so that most of them still parse.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::faults {

struct HeaderOptions {
  std::string folder;  // emptied
  int trials = 100;
  std::uint64_t seed = 0;
};

struct HeaderReport {
  int trials = 0, refused = 0, read = 0;
  std::string first_problem =
      {};  // another error than a sentence that names a file of the folder, or bytes out of a file
};

HeaderReport run_headers(const HeaderOptions& options);

}  // namespace dtensor::faults
