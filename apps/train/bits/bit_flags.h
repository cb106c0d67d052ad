// Flags of --bit-identical: recorded hashes, replay and the check of ranks.
#pragma once

#include "train/args.h"

namespace train {

void add_bit_flags(CLI::App& app, Options& options);
// Throws UsageError for flags that exclude each other. A replay ends with its step, and loads the checkpoint before it.
void check_bit_flags(const CLI::App& app, Options& options);

}  // namespace train
