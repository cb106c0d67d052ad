// Calls of modules that fully_shard() was given.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

namespace fsdp {
class LocalModuleCall;

// Whether the outermost call began with grad mode. Operators of a torch::autograd::Function inside it run without.
bool in_training_call();
}  // namespace fsdp

// One call of a module with local semantics: regular tensors replace its parameters and the module computes with
// regular ATen calls. Gradients of the parameters are averages over the shard and replicate axes. Gathers the units of
// the parameters (collective); backward gathers them again when it reaches the outputs.
class DTENSOR_API FsdpCall {
 public:
  // Called with true when a backward pass reaches the module, with false when the gradients of all its parameters are
  // complete.
  using OnBackward = std::function<void(bool inside)>;

  // Replaces parameters of units. Other parameters are not changed, nor are those that were distributed over a mesh of
  // their own before fully_shard (experts). `inputs` of the module mark the end of its backward if its parameters get
  // no gradients.
  explicit FsdpCall(at::TensorList parameters, at::TensorList inputs = {}, OnBackward on_backward = {});
  ~FsdpCall();  // finishes without outputs (the module threw)
  FsdpCall(const FsdpCall&) = delete;
  FsdpCall& operator=(const FsdpCall&) = delete;

  // The gathered tensor of each parameter: a regular tensor in the dtype that the unit computes in. If the parameter is
  // distributed over other axes than the unit's (tensor parallelism), a DTensor on their mesh.
  const std::vector<at::Tensor>& tensors() const;
  // Adds outputs of the module before finish().
  void watch(at::TensorList outputs);
  // Ends the forward call and reshards the units. `outputs` are the module's results, where backward enters. `keep`: no
  // other module runs before backward, which begins with these units, so they stay gathered.
  void finish(at::TensorList outputs, bool keep = false);

 private:
  std::shared_ptr<fsdp::LocalModuleCall> call_;
  bool finished_ = false;
};

}  // namespace dtensor
