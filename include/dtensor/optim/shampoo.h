// Distributed Shampoo (Gupta, Koren and Singer, arXiv 1802.09568; Shi et al., arXiv 2309.06497): each block of a
// parameter is preconditioned along each dimension by inverse roots of its gradients' second moments. Blocks partition
// the global parameter, not its shards, so results do not depend on the layout.
#pragma once

#include <memory>

#include "dtensor/optim/optimizer.h"

namespace dtensor {

// Which method determines the norm of a step.
enum class Grafting : std::uint8_t {
  none,
  adam,  // a block's step has the norm of Adam's step
};

// Per block of order o (dimensions after merging), with t the parameter's step:
//   A_k = beta2 A_k + (1 - beta2) G_k G_k^T               G_k: the gradient unfolded along dimension k
//   P_k = (A_k / (1 - beta2^t) + eps I)^(-1/(2 o))        at t = start, then whenever frequency divides t; I before
//   m = beta1 m + (1 - beta1) G;  u = m / (1 - beta1^t);  a = u / (sqrt(v / (1 - graft_beta2^t)) + graft_eps)
//   direction = u x_1 P_1 x_2 P_2 ..., scaled to the length of a; with grafting and t < start: a
//   W -= lr (direction + weight_decay W)
struct ShampooOptions {
  double lr = 1e-2;         // learning rate
  double beta1 = 0.9;       // decay of the first moments
  double beta2 = 0.999;     // decay of the factors A; 1: sum instead of moving average
  double eps = 1e-12;       // added to the factors before their roots
  double weight_decay = 0;  // decoupled, as AdamW's
  // Grafting method, and decay and epsilon of Adam's second moments.
  Grafting grafting = Grafting::adam;
  double graft_beta2 = 0.999, graft_eps = 1e-8;
  std::int64_t frequency = 10;  // steps between computations of inverse roots
  std::int64_t start = 10;      // first step with preconditioning
  std::int64_t block_size = 1024;
  // Adjacent dimensions with the smallest product are merged while there are more than merge_to dimensions and the
  // product does not exceed block_size. 0: never.
  std::int64_t merge_to = 2;
};

// Each block is owned by one rank of its parameter's mesh; the most expensive blocks are assigned first, each to the
// least loaded rank. The owner stores the factors A and P and computes the direction. Parameters on the same ranks
// share one all-to-all for the gradients and one for the directions.
// State: exp_avg and graft_exp_avg_sq with the parameter's placements; factor.<block>.<dim> and root.<block>.<dim>,
// which state() and state_dict() gather as DTensors on the parameter's mesh, Shard(0) on every axis.
class DTENSOR_API Shampoo final : public GroupOptimizer<ShampooOptions> {
 public:
  explicit Shampoo(std::vector<at::Tensor> parameters, ShampooOptions options = {});
  explicit Shampoo(const std::vector<Group>& groups);
  ~Shampoo() override;

  // Bytes of the factors and roots that this rank owns now, and once all blocks have them.
  std::int64_t owned_bytes() const;
  std::int64_t predicted_bytes() const;

 private:
  void update(const std::vector<Entry*>& active) override;
  void save_extra_state(const Entry& entry, const std::string& prefix, OptimizerState& state) const override;
  void extra_state_targets(Entry& entry, std::int64_t steps, const std::string& prefix, StateTensors& tensors,
                           std::vector<std::function<void()>>& commits) override;
  bool is_slot_required(const Entry& entry, std::size_t slot) const override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtensor
