// The program plan: which layout of a model is the fastest on given hardware, and how fast.
#pragma once

namespace plan {

// Returns the exit status: 1 if no layout fits, 2 for invalid flags.
int run_program(int argc, char** argv);

}  // namespace plan
