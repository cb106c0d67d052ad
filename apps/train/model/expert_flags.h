// Flags of the program moe about its experts.
#pragma once

#include "train/args.h"
#include "train/model/model.h"

namespace train {

void add_expert_flags(CLI::App& app, ExpertFlags& flags);
// Throws UsageError for flags that exclude each other. Experts that choose tokens need no balance.
void check_experts(const CLI::App& app, Options& options);
// Replaces the MLP of each block by experts. `tokens`: of a batch.
void set_experts(GptConfig& config, const ExpertFlags& flags, std::int64_t tokens);

}  // namespace train
