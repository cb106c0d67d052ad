// Muon (Jordan et al., 2024): momentum, then the nearest orthogonal matrix by five Newton-Schulz iterations, on the
// whole matrix whatever its shards.
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
  // Whether the gradient is looked at after the momentum; Newton-Schulz iterations.
  bool nesterov = true;
  std::int64_t iterations = 5;
  bool bfloat16 = true;          // the iterations (and what travels) in bfloat16, as torch.optim.Muon; else as it is
  bool match_adamw_rms = false;  // the second scale (Liu et al., arXiv 2502.16982)
};

// Parameters are matrices [m, n] or stacks of matrices [k, m, n] (experts), of which each matrix is orthogonalised by
// itself; others are refused. One rank of a parameter's mesh orthogonalises a matrix, the most expensive matrices
// first, each on the least loaded rank: one all-to-all to gather, one to hand back, for all parameters on the same
// ranks together. State: momentum_buffer.
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
