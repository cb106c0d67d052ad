// Muon (Jordan et al., 2024): momentum, then orthogonalization of the full matrix by five Newton-Schulz iterations.
#pragma once

#include <memory>

#include "dtensor/optim/adamw.h"
#include "dtensor/optim/optimizer.h"

namespace dtensor {

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
