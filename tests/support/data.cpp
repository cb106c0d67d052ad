// The only file of the tests that knows where the sources lie: a compiler cache serves all others to every clone.
#include "support/data.h"

namespace dtensor::test {

std::string data_path(const std::string& name) { return std::string(DTENSOR_TEST_DATA "/") + name; }

}  // namespace dtensor::test
