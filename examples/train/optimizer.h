// One optimizer step as on one device: warm-up, global gradient clipping, and the library's optimizer that the user
// asked for. Plain tensors and DTensors take the same path.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "args.h"
#include "dtensor/checkpoint.h"
#include "dtensor/named_tensors.h"
#include "dtensor/optim.h"

namespace train {

struct OptimizerOptions {
  std::string name = "adamw";  // sgd (with momentum), shampoo, muon (AdamW for embeddings, head, norms and biases)
  double lr = 1e-3, weight_decay = 0.1;
  double clip = 1.0;        // largest gradient norm; 0: no clipping
  std::int64_t warmup = 0;  // steps of linear warm-up to lr
  ShampooFlags shampoo = {};
};

class Optimizer {
 public:
  Optimizer(const dtensor::NamedTensors& parameters, OptimizerOptions options);

  // Clips, updates and forgets the gradients. Returns their global norm before clipping, a scalar tensor. `look` is
  // told it before anything is updated; what it throws leaves the parameters as they were.
  at::Tensor step(const std::function<void(const at::Tensor& norm)>& look = {});
  double next_lr() const;  // what the next step() uses
  // Of what this rank keeps for the parameters, and of what it will keep once every parameter had a step (with Shampoo:
  // and its inverse roots). The first is collective.
  std::int64_t state_bytes() const;
  std::int64_t predicted_state_bytes() const;
  void add_to(dtensor::Checkpoint& checkpoint);

 private:
  OptimizerOptions options_;
  std::int64_t steps_done_ = 0;
  std::unique_ptr<dtensor::Optimizer> rule_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace train
