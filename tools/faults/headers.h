// Malicious files: headers and JSON with changed tokens, so that most of them still parse.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::faults {

struct HeaderOptions {
  std::string folder;  // Its content is removed.
  int trials = 100;
  std::uint64_t seed = 0;
};

struct HeaderReport {
  int trials = 0, refused = 0, read = 0;
  std::string first_problem = {};  // An error that does not name a file of the folder, or offsets outside of a file.
};

HeaderReport run_headers(const HeaderOptions& options);

}  // namespace dtensor::faults
