// What examples/train and examples/moe are: one program, for a dense model or one with experts.
#pragma once

#include "args.h"

namespace train {

// Exit status: 0; 1 where training failed or the curves differ; 2 where the user asked for something that cannot be;
// kLeft (signals.h) where the run was left.
int run_program(Kind program, int argc, char** argv);

}  // namespace train
