// AdamW (Loshchilov and Hutter, arXiv 1711.05101), as torch.optim.AdamW computes it.
#pragma once

#include "dtensor/optim/optimizer.h"

namespace dtensor {

// As torch.optim.AdamW names them.
struct AdamWOptions {
  // Learning rate, decay of the first and second moments, what is added to the root, decoupled weight decay.
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  // One fused operator for a whole group, or a sequence of list operators. ATen's fused kernel on CPUs rounds the last
  // elements of a tensor (less than a vector) otherwise, so shards differ from one device in the last bit; the list
  // operators give the same bits on every layout.
  bool fused = true;
};

// State: exp_avg, exp_avg_sq.
class DTENSOR_API AdamW final : public GroupOptimizer<AdamWOptions> {
 public:
  explicit AdamW(std::vector<at::Tensor> parameters, AdamWOptions options = {});
  explicit AdamW(const std::vector<Group>& groups);

 private:
  void update(const std::vector<Entry*>& active) override;
};

}  // namespace dtensor
