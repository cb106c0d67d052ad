// Stochastic gradient descent with momentum, as torch.optim.SGD computes it.
#pragma once

#include "dtensor/optim/optimizer.h"

namespace dtensor {

// Named as in torch.optim.SGD.
struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;  // weight decay is added to the gradient
  bool nesterov = false;                                            // requires momentum without dampening
  bool fused = true;                                                // see AdamWOptions
};

// State: momentum_buffer, if momentum is not 0.
class DTENSOR_API SGD final : public GroupOptimizer<SGDOptions> {
 public:
  explicit SGD(std::vector<at::Tensor> parameters, SGDOptions options = {});
  explicit SGD(const std::vector<Group>& groups);

 private:
  void update(const std::vector<Entry*>& active) override;
  bool is_slot_required(const Entry& /*entry*/, std::size_t /*slot*/) const override { return false; }
};

}  // namespace dtensor
