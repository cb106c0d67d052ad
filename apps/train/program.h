// The program of apps/train and apps/moe, for a dense model or one with experts.
#pragma once

#include "args.h"
#include "train/data/data.h"

namespace train {

// Exit status: 0; 1 if training failed or the curves differ; 2 for invalid arguments; kExitRequeue (signals.h) if a
// signal stopped the run.
int run_program(Kind program, int argc, char** argv);

// Throws UsageError if sizes of the model are inconsistent.
void check_heads(const Options& options);
// The text of --data as tokens of --tokenizer. Sets what the model needs of the tokenizer in `options`. Throws
// UsageError if the text cannot be read.
Corpus read_corpus(Options& options);

}  // namespace train
