// What examples/train and examples/moe are: one program, for a dense model or one with experts.
#pragma once

#include "args.h"

namespace train {

// Exit status: 0; 1 where training failed or the curves differ; 2 where the user asked for something that cannot be;
// kLeft where a run that saves (--save) was asked to leave by SIGTERM or SIGUSR1: it saved after the step under way,
// and
// --resume goes on.
inline constexpr int kLeft = 75;  // EX_TEMPFAIL of sysexits.h: to be tried again
int run_program(Kind program, int argc, char** argv);

}  // namespace train
