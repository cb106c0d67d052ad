// How programs run the blocks of a decoder, and split its activations along the sequence.
#pragma once

#include "dtensor/estimate.h"
#include "dtensor/nn/decoder.h"
#include "dtensor/parallelize.h"

namespace train {

struct BlockRun {
  dtensor::Recomputation recompute = dtensor::Recomputation::none;  // In backward.
  bool float8 = false;                                              // Products.
};

dtensor::nn::DecoderBlock::Output run_block(const dtensor::nn::DecoderBlock& block, const at::Tensor& x,
                                            const dtensor::nn::DecoderPass& pass, const BlockRun& run);

// The plan with activations between the tensor-parallel parts split along the sequence: all-gather before them,
// reduce-scatter after them. `mlp`: whether a block has an MLP.
dtensor::ParallelPlan with_sequence_parallelism(dtensor::ParallelPlan plan, bool mlp);

}  // namespace train
