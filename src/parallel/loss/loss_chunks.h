// The passes of cross entropy on local tensors, some tokens at a time.
#pragma once

#include <vector>

#include "internal/saved_activation.h"
#include "parallel/loss/class_shard.h"
#include "parallel/loss/token_loss.h"

namespace dtensor {

// State of one call, apart from differentiable tensors.
struct LossCall {
  CrossEntropyOptions options;
  ClassShard shard = {};
  std::int64_t chunk = 0;  // tokens; 0: all at once
  bool linear = false;
  bool keeps_logits = false;  // from forward to backward
  at::Tensor weight = {};     // local [own classes]
  at::Tensor targets = {};    // local [t]
  at::Tensor given = {};      // unflattened, maybe a DTensor; for double backward
  at::Tensor head = {};       // local [own classes, features], until forward ends
  double weight_sum = 0;
  std::vector<std::int64_t> token_sizes = {};  // global
  // After forward:
  TokenState state = {};
  at::Tensor divisor = {}, z_divisor = {};  // 0-dim
  at::Tensor logits = {};                   // kept; backward overwrites them
  SavedSource values = {};                  // gives the saved operand again

  LossTerms terms() const { return {options, shard, weight, weight_sum}; }
};

// The terms of the loss of each token. `rows`: logits, or hidden states that `head` maps to them.
TokenLoss forward_chunks(LossCall& call, const at::Tensor& rows, const at::Tensor& head);

// Factors of the gradients of the loss and of its z-loss.
struct Scales {
  at::Tensor loss, z;  // [t] or 0-dim
};

// Gradients of `rows` and `head`, local.
struct LossGradients {
  at::Tensor rows, head;
};
LossGradients backward_chunks(LossCall& call, const at::Tensor& rows, const at::Tensor& head, const Scales& scales);

}  // namespace dtensor
