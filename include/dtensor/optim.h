// Optimizers and gradient clipping for regular tensors and DTensors on any combination of meshes: AdamW, SGD, Adagrad
// and Muon. Shampoo has a header of its own, which this one includes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/shampoo.h"

namespace dtensor {

// AdamW (Loshchilov and Hutter, arXiv 1711.05101), as torch.optim.AdamW computes it.

// Named as in torch.optim.AdamW.
struct AdamWOptions {
  // Learning rate, decay rates of the first and second moments, the term added to the square root, decoupled weight
  // decay.
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  // One fused kernel per group instead of a sequence of foreach operators. On CPUs, ATen's fused kernel rounds the last
  // elements of a tensor (less than a vector) differently. So shards differ from one device in the last bit; foreach
  // operators are bit-equal on all layouts.
  bool fused = true;
};

// State: exp_avg, exp_avg_sq.
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

  at::Tensor divisor_;
};

// Stochastic gradient descent with momentum, as torch.optim.SGD computes it.

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

// Adagrad (Duchi, Hazan and Singer, JMLR 12), as torch.optim.Adagrad computes it.

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

// Muon (Jordan et al., 2024): momentum, then orthogonalization of the full matrix by five Newton-Schulz iterations.

// buf += (1 - momentum) (G - buf);  U = nesterov ? G + momentum (buf - G) : buf;  X = orthogonal(U)
// W = W (1 - lr weight_decay) - lr scale X,  scale = sqrt(max(1, rows / columns)) or 0.2 sqrt(max(rows, columns))
struct MuonOptions {
  // Learning rate, decay of the momentum, decoupled weight decay.
  double lr = 0.02, momentum = 0.95, weight_decay = 0;
  // Nesterov momentum, and the number of Newton-Schulz iterations.
  bool nesterov = true;
  std::int64_t iterations = 5;
  bool bfloat16 = true;  // iterations and communication in bfloat16, as torch.optim.Muon; else in the parameter's dtype
  bool match_adamw_rms = false;  // the second scale (Liu et al., arXiv 2502.16982)
};

// Parameters are matrices [m, n] or stacks of matrices [k, m, n] (experts), each orthogonalized separately; other
// shapes are an error. One rank of a parameter's mesh orthogonalizes a matrix: the most expensive matrices are assigned
// first, each to the least loaded rank. Parameters on the same ranks share one all-to-all for the gradients and one for
// the results. State: momentum_buffer.
class DTENSOR_API Muon final : public GroupOptimizer<MuonOptions> {
 public:
  explicit Muon(std::vector<at::Tensor> parameters, MuonOptions options = {});
  explicit Muon(const std::vector<Group>& groups);
  ~Muon() override;

 private:
  void update(const std::vector<Entry*>& active) override;

  struct State;
  std::unique_ptr<State> state_;
};

// Muon for the given matrices, AdamW for the rest (embeddings, heads, vectors).
DTENSOR_API std::unique_ptr<CombinedOptimizer> muon_with_adamw(std::vector<at::Tensor> matrices, MuonOptions muon,
                                                               std::vector<at::Tensor> rest, AdamWOptions adamw);

}  // namespace dtensor
