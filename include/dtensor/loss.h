// Cross entropy on logits that are sharded by classes, tokens or both. It takes two small all-reduces over the axes
// that split the classes, none in backward, and never gathers the logits of a token. Results equal those of one device
// on every layout: means count the valid tokens of the global batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// Reduction over tokens.
enum class LossReduction : std::uint8_t { none, mean, sum };

// Options of torch.nn.functional.cross_entropy, and a z-loss.
struct CrossEntropyOptions {
  // Reduction over valid tokens, and the target that marks the others.
  LossReduction reduction = LossReduction::mean;
  std::int64_t ignore_index = -100;
  at::Tensor weight = {};      // [classes], regular tensor or DTensor; no gradient
  double label_smoothing = 0;  // as in torch.nn.functional.cross_entropy
  // Adds z_loss * logsumexp(logits)^2 of each valid token; `mean` divides by their number, even with weights.
  double z_loss = 0;
};

// Floating-point logits [..., classes] and integer targets [...], both regular tensors or DTensors on one mesh. Half
// types are computed and returned in float. With `none` the result is [...], zero for ignored tokens. Without a valid
// token, `mean` is NaN as in PyTorch. A target that is neither a class nor ignore_index is an error on the ranks that
// store it, which ends the run of all ranks; on CUDA it is a device assertion. Targets and weights are copied, so their
// tensors may be overwritten before backward. On ranks outside the mesh the loss is a handle without data, as the
// result of an operator is. Differentiable with respect to the logits; double backward is ATen's (create_graph).
DTENSOR_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                     const CrossEntropyOptions& options = {});

// cross_entropy(linear(hidden, weight), targets) in chunks of `chunk` tokens per rank: at most [chunk, classes per
// rank] logits exist at once, and backward recomputes them. chunk = 0: all logits of the rank, in the dtype of hidden,
// are kept for backward, which recomputes nothing and overwrites them with their gradient; a second backward recomputes
// them. hidden [..., features], weight [classes, features]. On a GPU, products of half types have rows of a multiple of
// 16 bytes for any number of classes. Differentiable with respect to both; with create_graph all logits of a rank exist
// at once. Autocast casts both as it casts the operands of linear.
DTENSOR_API at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                            const at::Tensor& targets, const CrossEntropyOptions& options = {},
                                            std::int64_t chunk = 1024);

// For programs ported from PyTorch, where losses on class-sharded logits need a context. Here at::cross_entropy_loss,
// at::log_softmax and at::nll_loss always keep class shards, so the scope has no effect.
class loss_parallel {
 public:
  loss_parallel() {}   // not defaulted, to avoid unused-variable warnings
  ~loss_parallel() {}  // the same
  loss_parallel(const loss_parallel&) = delete;
  loss_parallel& operator=(const loss_parallel&) = delete;
};

}  // namespace dtensor
