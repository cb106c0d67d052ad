// How much arithmetic training takes, for "model FLOPs utilisation" (MFU).
#pragma once

#include <cstdint>

#include "model.h"

namespace train {

// Floating-point operations of forward and backward for one token of a sequence of that length, by the formula of PaLM
// (Chowdhery et al. 2022, appendix B): 6 for each weight of a matrix that the token is multiplied with (of experts,
// those of its choices), and 12 * layers * hidden * sequence for attention. The embedding is looked up, and
// recomputation is not counted.
double flops_per_token(GptConfig config, std::int64_t sequence);

}  // namespace train
