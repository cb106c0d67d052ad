// The only file of the tests that contains the path of the sources, so that a compiler cache works for all other files.
#include "support/data.h"

namespace dtensor::test {

std::string data_path(const std::string& name) { return std::string(DTENSOR_TEST_DATA "/") + name; }

}  // namespace dtensor::test
