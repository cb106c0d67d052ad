// Hand-written SPMD code for the transformer of apps/train: ATen on local tensors and calls of a Communicator,
// without DTensor. It is the reference for the library's overhead and gives the same results.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "train/data/data.h"
#include "train/run.h"

namespace manual_spmd {

// The weights of one device; all ranks start with the same.
struct Weights {
  at::Tensor embedding;                         // [vocabulary, hidden]
  std::vector<std::vector<at::Tensor>> blocks;  // Each in the order of Block.
  at::Tensor norm, norm_bias, head;
};

// As the library draws them from `seed`.
Weights make_weights(const train::Options& options);

// Norm of attention (weight, bias), q, k, v, o, norm of the MLP (weight, bias), up, down.
enum Block { kNorm1, kBias1, kQ, kK, kV, kO, kNorm2, kBias2, kUp, kDown };

struct Losses {
  std::vector<double> loss, seconds;  // Of each step.
};

// A training loop.
class Training {
 public:
  virtual ~Training() = default;
  Losses run(const train::Options& options, const train::Corpus& corpus);

 protected:
  // Forward and backward of the global batch. Returns the mean loss on every rank.
  virtual double forward_backward(const train::Batch& batch) = 0;
  // Clips the gradients to a total norm, and makes a step of AdamW.
  virtual void update(double clip, double lr) = 0;
};

// Updates local tensors by ATen's operators; subclasses implement a kind of parallelism.
class ManualTraining : public Training {
 protected:
  void update(double clip, double lr) final;
  // The tensors that this rank updates, and their gradients.
  virtual std::vector<at::Tensor> parameters() = 0;
  virtual std::vector<at::Tensor> gradients() = 0;
  virtual double total_norm(const std::vector<at::Tensor>& gradients) = 0;
  virtual void zero_grad() = 0;

 private:
  std::vector<at::Tensor> first_, second_, steps_;
};

// AdamW's options of both.
inline constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kWeightDecay = 0.1;

// Fully sharded: one flat buffer for each block, gathered for forward and for backward, and reduced after backward.
std::unique_ptr<Training> fully_sharded(const dtensor::Communicator& world, const train::Options& options);
// Matrices are split column-wise and row-wise in pairs, the embedding by words; logits are unsharded.
std::unique_ptr<Training> tensor_parallel(const dtensor::Communicator& world, const train::Options& options);
// The library's fully_shard, called with each rank's local part of the batch (regular tensors); compared with
// fully_sharded().
std::unique_ptr<Training> local_semantics(const dtensor::Communicator& world, const train::Options& options);

}  // namespace manual_spmd
