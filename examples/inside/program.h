// The program inside.
#pragma once

namespace inside {

// Exit status: 0; 1 if a rank failed; 2 for invalid arguments.
int run_program(int argc, char** argv);

}  // namespace inside
