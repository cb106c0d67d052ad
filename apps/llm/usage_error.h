// Invalid arguments of the user: one line and exit status 2.
#pragma once

#include "train/run_flags.h"

namespace llm {

using train::UsageError;

}  // namespace llm
