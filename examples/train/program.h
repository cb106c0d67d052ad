// What examples/train and examples/moe are: one program, for a dense model or one with experts.
#pragma once

#include "args.h"
#include "data.h"

namespace train {

// Exit status: 0; 1 where training failed or the curves differ; 2 where the user asked for something that cannot be;
// kExitRequeue (signals.h) where the run was left.
int run_program(Kind program, int argc, char** argv);

// Throws UsageError where the model's sizes do not go together.
void check_heads(const Options& options);
// The text of --data, as --tokenizer cuts it; what the model has to know of the tokenizer is put into `options`. Throws
// UsageError where there is no such text.
Corpus read_corpus(Options& options);

}  // namespace train
