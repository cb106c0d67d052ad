// The loss of the model's heads, over a batch that may be computed in parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace train {

// Its full value as a double, on its device.
at::Tensor value_of(const at::Tensor& scalar);

// The mean of the heads' losses (multi-token prediction, arXiv:2404.19737, with linear heads). Head d predicts the
// target d positions later; the last d rows have none and do not count.
at::Tensor token_losses(const std::vector<at::Tensor>& logits, const at::Tensor& targets);
// The same from the last activation and the weights of the heads, without logits in at least float.
at::Tensor fused_token_losses(const std::vector<at::Tensor>& operands, const at::Tensor& targets);

// The mean loss of a batch. If it has several parts, their sums are divided by the number of targets of the batch. So
// the gradient of a token does not depend on the parts, and sums over parts are those of the batch.
class BatchLoss {
 public:
  // `targets` are those of the batch.
  BatchLoss(const at::Tensor& targets, std::size_t parts, std::int64_t heads, bool fused);

  // Adds a part and returns its contribution to the mean. `operands` are those of token_losses() or
  // fused_token_losses(); router losses of all parts add up to those of the batch.
  at::Tensor add(const std::vector<at::Tensor>& operands, const std::vector<at::Tensor>& router_losses,
                 const at::Tensor& targets);
  // Of the parts so far, by the operators of a single part; undefined without a part. Has a graph if there is one part.
  at::Tensor mean() const;

 private:
  at::Tensor mean_of(const std::vector<at::Tensor>& heads, const at::Tensor& routers) const;

  bool fused_;
  std::vector<double> counts_;    // Targets of each head; empty: one part.
  std::vector<at::Tensor> sums_;  // By head; of one part, means.
  at::Tensor routers_;            // By layer.
};

}  // namespace train
