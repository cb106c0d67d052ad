// One optimizer step as on one device: global gradient clipping and fused AdamW over lists, in plain ATen. Plain
// tensors and DTensors take the same path.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace train {

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, weight_decay = 0.1, eps = 1e-8;
  double clip = 1.0;        // largest gradient norm; 0: no clipping
  std::int64_t warmup = 0;  // steps of linear warm-up to lr
};

class AdamW {
 public:
  AdamW(std::vector<at::Tensor> parameters, AdamWOptions options);

  // Clips, updates and forgets the gradients. Returns their global norm before clipping, a scalar tensor.
  at::Tensor step();
  double next_lr() const;  // what the next step() uses

 private:
  AdamWOptions options_;
  std::int64_t steps_done_ = 0;
  std::vector<at::Tensor> parameters_, averages_, squares_, steps_;
};

// The L2 norm of all tensors together, a scalar tensor.
at::Tensor global_norm(at::TensorList tensors);

}  // namespace train
