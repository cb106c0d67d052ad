// Adagrad (Duchi, Hazan and Singer, JMLR 12), as torch.optim.Adagrad computes it.
#pragma once

#include "dtensor/optim/optimizer.h"

namespace dtensor {

// Named as in torch.optim.Adagrad.
struct AdagradOptions {
  // Learning rate and its decay, weight decay, initial value of the sum, and the term added to its square root.
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_sum = 0, eps = 1e-10;
};

// State: sum.
class DTENSOR_API Adagrad final : public GroupOptimizer<AdagradOptions> {
 public:
  explicit Adagrad(std::vector<at::Tensor> parameters, AdagradOptions options = {});
  explicit Adagrad(const std::vector<Group>& groups);

 private:
  void update(const std::vector<Entry*>& active) override;
};

}  // namespace dtensor
