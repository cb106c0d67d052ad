// Computation on local tensors that both kinds of parallelism share.
#pragma once

#include <ATen/ATen.h>

#include "by_hand/training.h"

namespace manual_spmd {

// Communication of activations between ranks, if any.
struct TensorParallelComm {
  // From replicated activations to split layers, and from Partial results to replicated ones.
  std::function<at::Tensor(const at::Tensor&)> enter = [](const at::Tensor& x) { return x; };
  std::function<at::Tensor(const at::Tensor&)> leave = [](const at::Tensor& x) { return x; };
};

// [batch, sequence, hidden]; `heads`: number of heads on this rank.
inline at::Tensor block(const at::Tensor& x, const std::vector<at::Tensor>& w, std::int64_t heads,
                        const TensorParallelComm& tp_comm) {
  const auto norm = [&](const at::Tensor& t, int weight) {
    return tp_comm.enter(at::layer_norm(t, {t.size(-1)}, w[weight], w[weight + 1]));
  };
  const at::Tensor normal = norm(x, kNorm1);
  const auto split = [&](int weight) {
    return at::linear(normal, w[weight]).unflatten(-1, {heads, -1}).transpose(1, 2);
  };
  const at::Tensor y = at::scaled_dot_product_attention(split(kQ), split(kK), split(kV), {}, 0.0, true);
  const at::Tensor h = x + tp_comm.leave(at::linear(y.transpose(1, 2).flatten(2, 3), w[kO]));
  return h + tp_comm.leave(at::linear(at::gelu(at::linear(norm(h, kNorm2), w[kUp])), w[kDown]));
}

inline at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace manual_spmd
