// The loss of tokens on this rank's classes, and its gradient: regular tensors, with the reductions over classes.
#pragma once

#include "dtensor/loss.h"
#include "parallel/loss/class_shard.h"

namespace dtensor {

struct LossTerms {
  const CrossEntropyOptions& options;
  const ClassShard& shard;
  at::Tensor weight;      // [own classes], or undefined
  double weight_sum = 0;  // over all classes; their number without weights

  bool smooths() const { return options.label_smoothing > 0; }
};

// State that backward needs for each token.
struct TokenState {
  at::Tensor lse;            // [t] log of the sum of exponentials
  at::Tensor valid;          // [t] 1 or 0
  at::Tensor target_weight;  // [t] weight of the target's class; 0 where ignored
};

// Per token, before any division: cross entropy [t] and logsumexp^2 [t] (0 if ignored; undefined without z-loss).
struct TokenLoss {
  at::Tensor loss, z;
  TokenState state;
};

// logits [t, own classes, then any padding] in any floating-point type; targets [t].
TokenLoss token_loss(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets);

// d/d logits of sum_t (scale_t * loss_t + z_scale_t * z_t), into `out`, which may be `logits`; zero in the padding. The
// scales are [t] or 0-dim. No communication.
void token_gradient(const LossTerms& terms, const at::Tensor& logits, const at::Tensor& targets,
                    const TokenState& state, const at::Tensor& scale, const at::Tensor& z_scale, const at::Tensor& out);

}  // namespace dtensor
