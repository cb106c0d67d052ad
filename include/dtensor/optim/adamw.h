// AdamW (Loshchilov and Hutter, arXiv 1711.05101), as torch.optim.AdamW computes it.
#pragma once

#include "dtensor/optim/optimizer.h"

namespace dtensor {

// Named as in torch.optim.AdamW.
struct AdamWOptions {
  // Learning rate, decay rates of the first and second moments, the term added to the square root, decoupled weight
  // decay.
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  // One fused kernel per group instead of a sequence of foreach operators. On CPUs, ATen's fused kernel rounds the last
  // elements of a tensor (less than a vector) differently. So shards differ from one device in the last bit; foreach
  // operators are bit-equal on all layouts.
  bool fused = true;
  // AMSGrad (Reddi et al., arXiv 1904.09237): divides by the largest second moment so far, which is a third state.
  bool amsgrad = false;
};

// State: exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
class DTENSOR_API AdamW final : public GroupOptimizer<AdamWOptions> {
 public:
  explicit AdamW(std::vector<at::Tensor> parameters, AdamWOptions options = {});
  explicit AdamW(const std::vector<Group>& groups);

  // The next step() uses the gradients divided by this 0-dim tensor (clip_divisor()); afterwards .grad may be divided
  // or not. Fused kernels divide while they read, which saves the pass of clip_grad_norm_() over all gradients; they
  // take the number in float32, so float64 gradients are divided by a pass of their own. Undefined: does nothing.
  void divide_gradients(at::Tensor divisor) { divisor_ = std::move(divisor); }

 private:
  void update(const std::vector<Entry*>& active) override;
  bool is_slot_required(const Entry& entry, std::size_t slot) const override;

  at::Tensor divisor_;
};

}  // namespace dtensor
