// The program faults.
#pragma once

namespace dtensor::faults {

// Exit status: 0; 1 if a campaign found a problem or failed; 2 for invalid arguments.
int run_program(int argc, char** argv);

}  // namespace dtensor::faults
