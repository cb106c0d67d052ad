// The optimizer of every program that trains, as on one device: a learning rate of each step, clipping by the global
// gradient norm, and an optimizer of the library. Regular tensors and DTensors take the same path.
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
  // sgd (with momentum); shampoo; muon, for the matrices of blocks, and AdamW for embeddings, head, routers, norms and
  // biases. Muon's steps have the size of AdamW's (MuonOptions::match_adamw_rms), so both have one learning rate.
  std::string name = "adamw";
  dtensor::LearningRate rate = dtensor::LearningRate::constant(1e-3);
  double weight_decay = 0.1, beta2 = 0.95;
  double clip = 1.0;          // Maximum gradient norm; 0: no clipping.
  bool muon_experts = false;  // Muon also for the packed matrices of experts.
  ShampooFlags shampoo = {};
};

class Optimizer {
 public:
  // Each parameter once, with the names of nn::Decoder.
  Optimizer(const dtensor::NamedTensors& parameters, OptimizerOptions options);

  // Clips, updates and resets the gradients. Returns their global norm before clipping, a scalar tensor. Calls `look`
  // with it before any update; if `look` throws, the parameters are unchanged.
  at::Tensor step(const std::function<void(const at::Tensor& norm)>& look = {});
  double next_lr() const { return options_.rate(steps_done_); }  // For the next step().
  std::int64_t steps_done() const { return steps_done_; }
  void set_steps_done(std::int64_t steps) { steps_done_ = steps; }  // Of a run that is resumed without add_to().
  // State of the parameters on this rank. Collective.
  std::int64_t state_bytes() const;
  dtensor::StateTensors state(const at::Tensor& parameter) const { return rule_->state(parameter); }
  // SHA-256 of each parameter with its states by global contents, equal on every mesh; empty for parameters of other
  // ranks. Gathers one tensor at a time. Collective over the parameters' meshes.
  std::vector<std::string> content_hashes() const;
  // Of all parameters, equal on every rank. Collective over `world`, which is empty on one device.
  std::string content_hash(const dtensor::Communicator& world) const;
  // Of this rank's parts of parameters and states.
  std::string local_hash() const;
  void add_to(dtensor::Checkpoint& checkpoint) {
    checkpoint.add("optimizer", *rule_).add("optimizer_steps", steps_done_);
  }
  dtensor::Optimizer& rule() { return *rule_; }

 private:
  OptimizerOptions options_;
  std::int64_t steps_done_ = 0;
  std::unique_ptr<dtensor::Optimizer> rule_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace train
