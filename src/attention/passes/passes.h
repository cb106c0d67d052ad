// Both passes of attention on local tensors: this rank's queries meet all keys, block by block.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attention/passes/tile_kernel.h"
#include "dtensor/comm.h"

namespace dtensor::attention_impl {

// Who has what along the axes whose ranks pass keys on.
struct SequenceParts {
  Communicator comm;  // none: this rank's keys are all that it needs
  Communicator
      merge;  // none: this rank sees all keys that its queries need; else ranks with the same queries, other keys
  int me = 0;
  std::vector<Segments> q, kv;  // of each member
  std::vector<std::int64_t>
      heads;  // the head of keys of each query head, where they are not equal groups in order; else empty
};

struct Forward {
  at::Tensor out;       // as q, with v's features
  at::Tensor lse;       // [b, h, l], sinks included
  at::Tensor top = {};  // as Partial's
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
