// The program aten_cases.
#pragma once

namespace dtensor::cases {

// Exit status: 0; 1 where a case does not pass; 2 where the user asked for something that cannot be, or there are no
// cases; 3 where a case hangs, 4 where one crashes, 5 where one left the device of no use to the process.
int run_program(int argc, char** argv);

}  // namespace dtensor::cases
