// One optimizer step as on one device: warm-up, clipping by the global gradient norm, and an optimizer of the library.
// Regular tensors and DTensors take the same path.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "dtensor/optim.h"
#include "dtensor/tensor.h"
#include "train/args.h"

namespace train {

struct OptimizerOptions {
  std::string name = "adamw";  // sgd (with momentum), shampoo, muon (AdamW for embeddings, head, norms and biases).
  double lr = 1e-3, weight_decay = 0.1;
  double clip = 1.0;        // Maximum gradient norm; 0: no clipping.
  std::int64_t warmup = 0;  // Steps of linear warm-up to lr.
  ShampooFlags shampoo = {};
};

// SHA-256 of each parameter with its states by global contents, equal on every mesh; empty for parameters of other
// ranks. Gathers one tensor at a time. Collective over the parameters' meshes.
std::vector<std::string> content_hashes(const dtensor::Optimizer& optimizer, const std::vector<at::Tensor>& parameters);
// Of all parameters, equal on every rank. Collective over `world`, which is empty on one device.
std::string content_hash(const dtensor::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
                         const dtensor::Communicator& world);

class Optimizer {
 public:
  Optimizer(const dtensor::NamedTensors& parameters, OptimizerOptions options);

  // Clips, updates and resets the gradients. Returns their global norm before clipping, a scalar tensor. Calls `look`
  // with it before any update; if `look` throws, the parameters are unchanged.
  at::Tensor step(const std::function<void(const at::Tensor& norm)>& look = {});
  double next_lr() const;  // For the next step().
  // State of the parameters on this rank. Collective.
  std::int64_t state_bytes() const;
  dtensor::StateTensors state(const at::Tensor& parameter) const { return rule_->state(parameter); }
  std::vector<std::string> content_hashes() const { return train::content_hashes(*rule_, parameters_); }
  std::string content_hash(const dtensor::Communicator& world) const {
    return train::content_hash(*rule_, parameters_, world);
  }
  // Of this rank's parts of parameters and states.
  std::string local_hash() const;
  void add_to(dtensor::Checkpoint& checkpoint);

 private:
  OptimizerOptions options_;
  std::int64_t steps_done_ = 0;
  std::unique_ptr<dtensor::Optimizer> rule_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace train
