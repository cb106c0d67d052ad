// The program aten_cases.
#pragma once

namespace dtensor::cases {

// Exit status: 0; 1 if a case does not pass; 2 for invalid arguments or if there are no cases; 3 if a case hangs; 4 if
// one crashes; 5 if one makes the device unusable for the process.
int run_program(int argc, char** argv);

}  // namespace dtensor::cases
