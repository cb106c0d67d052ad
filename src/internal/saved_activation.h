// Saves a gathered activation for backward by the smaller tensor from which it was gathered, and gathers it again in
// backward. So the inputs of column-parallel layers take no more memory under sequence parallelism than its shards.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

class Regathered;

// Redistributes `x` to placements in which operators use it. Where that is an all-gather of shards, the result refers
// to `x`, so that SavedActivation saves `x`.
DTENSOR_API at::Tensor gather_activation(const at::Tensor& x, const Placements& placements);

// What a node saves of a tensor: the tensor itself, or what gather_activation() made it of. For nodes that save tensors
// by means of their own.
class DTENSOR_API SavedSource {
 public:
  SavedSource() = default;
  explicit SavedSource(const at::Tensor& tensor);

  // To be saved; reset() drops it here.
  const at::Tensor& source() const { return source_; }
  void reset() { source_.reset(); }
  // The tensor of what was saved; see SavedActivation::unpack().
  at::Tensor unpack(const at::Tensor& saved) const;

 private:
  at::Tensor source_;
  std::shared_ptr<Regathered> regathered_;  // null: the source is the tensor itself
};

// A tensor that an autograd node saves.
class SavedActivation {
 public:
  SavedActivation() = default;
  explicit SavedActivation(const at::Tensor& tensor);

  // The tensor. If it has to be gathered, all nodes that saved it share one all-gather in a backward pass; with a graph
  // each has its own. Collective.
  at::Tensor unpack() const;
  void reset();

 private:
  torch::autograd::SavedVariable saved_;
  SavedSource of_;
};

}  // namespace dtensor
