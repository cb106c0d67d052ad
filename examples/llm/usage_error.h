// What the user asked for and cannot have: one line and exit status 2.
#pragma once

#include "train/args.h"

namespace llm {

using train::UsageError;

}  // namespace llm
