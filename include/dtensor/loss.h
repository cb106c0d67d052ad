// Cross entropy on logits whose classes, tokens or both are sharded: two small all-reduces over the axes that split the
// classes, none in backward, and never the whole logits of a token on one rank. Equal to one device on every layout:
// means count the valid tokens of the global batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// Over tokens.
enum class LossReduction : std::uint8_t { none, mean, sum };

// As in torch.nn.functional.cross_entropy, and a z-loss.
struct CrossEntropyOptions {
  // Over valid tokens; and the target of those that are not.
  LossReduction reduction = LossReduction::mean;
  std::int64_t ignore_index = -100;
  at::Tensor weight = {};      // [classes], plain or a DTensor; no gradient
  double label_smoothing = 0;  // as in torch.nn.functional.cross_entropy
  // Adds z_loss * logsumexp(logits)^2 of each valid token; under `mean` divided by their number, weighted or not.
  double z_loss = 0;
};

// logits [..., classes] of floating point, targets [...] of whole numbers; both plain or DTensors on one mesh. Half
// types are computed and returned in float. `none`: [...], zero for ignored tokens. With no valid token, `mean` is NaN
// as in PyTorch. A target that is no class and not ignore_index is an error (on the ranks that hold it, which ends the
// run of all). Targets and weights are copied: their tensors may be filled anew before backward. On ranks outside the
// mesh the loss is a handle without data, as an operator's result is.
// Differentiable with respect to the logits; the gradient of that gradient is ATen's (create_graph).
DTENSOR_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                     const CrossEntropyOptions& options = {});

// cross_entropy(linear(hidden, weight), targets) in pieces of `chunk` tokens of each rank: no more logits than
// [chunk, a rank's classes] exist at once, in forward or backward, where they are computed again. hidden [...,
// features], weight [classes, features]. Differentiable with respect to both; with create_graph all
// of a rank's logits exist at once. Under autocast both are cast as linear's operands are.
DTENSOR_API at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                            const at::Tensor& targets, const CrossEntropyOptions& options = {},
                                            std::int64_t chunk = 1024);

// For programs that come from PyTorch, where losses on class-sharded logits need a context. Here
// at::cross_entropy_loss, at::log_softmax and at::nll_loss keep class shards wherever they are called, so the scope
// changes nothing.
class loss_parallel {
 public:
  loss_parallel() {}   // not defaulted: a scope that is only named must not look unused
  ~loss_parallel() {}  // the same
  loss_parallel(const loss_parallel&) = delete;
  loss_parallel& operator=(const loss_parallel&) = delete;
};

}  // namespace dtensor
