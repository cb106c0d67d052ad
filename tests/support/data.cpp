// The only file of the tests that contains the paths of the sources and of the build folder, so that a compiler cache
// works for all other files.
#include "support/data.h"

namespace dtensor::test {

std::string data_path(const std::string& name) { return std::string(DTENSOR_TEST_DATA "/") + name; }
std::string source_path(const std::string& name) { return std::string(DTENSOR_SOURCE "/") + name; }

}  // namespace dtensor::test
