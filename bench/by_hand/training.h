// The transformer of examples/train, distributed as one does by hand: ATen on local tensors and calls of a
// Communicator, no DTensor. What the library's own cost is measured against. The same numbers come out.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "train/data.h"
#include "train/run.h"

namespace manual_spmd {

// Of one device: all ranks begin with the same.
struct Weights {
  at::Tensor embedding;                         // [vocabulary, hidden]
  std::vector<std::vector<at::Tensor>> blocks;  // each in the order of Block
  at::Tensor norm, norm_bias, head;
};

// As the library draws them from `seed`.
Weights make_weights(const train::Options& options);

// ln1.weight, ln1.bias, q, k, v, o, ln2.weight, ln2.bias, ffn1, ffn2.
enum Block { kNorm1, kBias1, kQ, kK, kV, kO, kNorm2, kBias2, kUp, kDown };

struct Losses {
  std::vector<double> loss, seconds;  // of each step
};

// The loop of a training with AdamW and clipping; a way of distribution says what a step is.
class Training {
 public:
  virtual ~Training() = default;
  Losses run(const train::Options& options, const train::Corpus& corpus);

 protected:
  // Forward and backward of the global batch; the mean loss as a number on every rank, gradients in gradients().
  virtual double forward_backward(const train::Batch& batch) = 0;
  // What this rank updates, and the gradients of it.
  virtual std::vector<at::Tensor> parameters() = 0;
  virtual std::vector<at::Tensor> gradients() = 0;
  virtual double total_norm(const std::vector<at::Tensor>& gradients) = 0;
  virtual void zero_grad() = 0;
};

// Fully sharded: one flat buffer for each block, gathered for forward and for backward, reduced as it is done.
std::unique_ptr<Training> fully_sharded(const dtensor::Communicator& world, const train::Options& options);
// Columns and rows of the matrices split in pairs, words of the vocabulary over ranks; whole logits.
std::unique_ptr<Training> tensor_parallel(const dtensor::Communicator& world, const train::Options& options);
// The library's fully_shard, called on each rank's own part of the batch (regular tensors): beside fully_sharded().
std::unique_ptr<Training> local_semantics(const dtensor::Communicator& world, const train::Options& options);

}  // namespace manual_spmd
