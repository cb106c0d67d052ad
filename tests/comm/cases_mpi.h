// Programs that fail under mpirun.
#pragma once

namespace dtensor::test {

int run_case(const char* name, int argc, char** argv);

}  // namespace dtensor::test
