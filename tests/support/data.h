// Location of the tests' recorded data and of files of the repository.
#pragma once

#include <string>

namespace dtensor::test {

// The path of recorded data, which CMake unpacks from tests/data/*.tar.xz (cmake/test_data.cmake).
std::string data_path(const std::string& name);

// The path of a file or folder of the repository.
std::string source_path(const std::string& name);

}  // namespace dtensor::test
