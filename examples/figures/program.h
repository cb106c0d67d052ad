// The program figures.
#pragma once

namespace figures {

// Exit status: 0; 1 where a figure could not be made; 2 where the user asked for something that cannot be.
int run_program(int argc, char** argv);

}  // namespace figures
