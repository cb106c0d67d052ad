// Both passes of attention on local tensors: this rank's queries with all keys, block by block.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attention/passes/tile_kernel.h"
#include "dtensor/comm.h"

namespace dtensor::attention_impl {

// The parts of the sequence on the axes along which ranks exchange keys.
struct SequenceParts {
  Communicator comm;  // undefined: this rank has all keys that it needs
  Communicator
      merge;  // undefined: this rank sees all keys of its queries; else ranks with the same queries and other keys
  int me = 0;
  std::vector<Segments> q, kv;      // of each rank of `comm`
  std::vector<std::int64_t> heads;  // the key head of each query head if they are not equal groups in order; else empty
};

struct Forward {
  at::Tensor out;           // like q, with the features of v
  at::Tensor lse;           // [b, h, l], including sinks
  at::Tensor row_max = {};  // see TileResult
};

// `sinks`: [h] or undefined.
Forward forward_pass(const Scores& scores, const SequenceParts& blocks, const Inputs& in, const at::Tensor& sinks);

struct Backward {
  Inputs in;         // gradients of q, k and v
  at::Tensor sinks;  // undefined without sinks
};

Backward backward_pass(const Scores& scores, const SequenceParts& blocks, const Inputs& in, const Forward& result,
                       const at::Tensor& grad, const at::Tensor& sinks);

}  // namespace dtensor::attention_impl
