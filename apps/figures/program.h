// The program figures.
#pragma once

namespace figures {

// Exit status: 0; 1 if a figure could not be made; 2 for invalid arguments.
int run_program(int argc, char** argv);

}  // namespace figures
