// What the user asked for and cannot have: one line and exit status 2.
#pragma once

#include "train/run_flags.h"

namespace llm {

using train::UsageError;

}  // namespace llm
