// Location of the tests' recorded data.
#pragma once

#include <string>

namespace dtensor::test {

// The path of a file or folder of tests/data.
std::string data_path(const std::string& name);

}  // namespace dtensor::test
