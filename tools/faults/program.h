// The program faults.
#pragma once

namespace dtensor::faults {

// Exit status: 0; 1 where a campaign found a problem or could not be run; 2 where the user asked for something that
// cannot be.
int run_program(int argc, char** argv);

}  // namespace dtensor::faults
