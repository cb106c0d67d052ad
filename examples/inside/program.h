// The program inside.
#pragma once

namespace inside {

// Exit status: 0; 1 where a rank failed; 2 where the user asked for something that cannot be.
int run_program(int argc, char** argv);

}  // namespace inside
