// Floating-point operations of training, for "model FLOPs utilization" (MFU).
#pragma once

#include <cstdint>

#include "train/model/model.h"

namespace train {

// What attention counts: all pairs of tokens, as in PaLM, or the causal half of them, which a kernel computes.
enum class AttentionFlops : std::uint8_t { full, causal };

// Floating-point operations of forward and backward for one token of a sequence of this length, by the formula of PaLM
// (Chowdhery et al. 2022, appendix B): 6 for each matrix weight that the token uses (for experts, those of its
// choices), and 12 * layers * hidden * sequence for attention, or half of it. The embedding look-up and recomputation
// do not count.
double flops_per_token(GptConfig config, std::int64_t sequence, AttentionFlops attention = AttentionFlops::full);

}  // namespace train
