// What Ctrl-C prints.
#pragma once

#include <string>

#include "dtensor/export.h"

namespace dtensor {

// From here on SIGINT (Ctrl-C) ends this process with the line `PROGRAM: interrupted` on stderr, if it is rank 0 or the
// only process; the exit status is still that of the signal. Under mpirun, which sends SIGTERM to its ranks when it is
// interrupted and when a rank has failed, the line says that. A handler of the program, or SIG_IGN, is kept. launch()
// calls it with the name of the program; a program that works before or without launch() calls it first.
DTENSOR_API void report_interrupt(const std::string& program);

}  // namespace dtensor
