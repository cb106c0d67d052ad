// A call of a module with local semantics: regular tensors replace its parameters.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>
#include <vector>

#include "dtensor/fully_shard.h"
#include "internal/autograd_node.h"
#include "internal/fsdp_call.h"
#include "internal/local_data.h"
#include "internal/scoped_value.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

// State of one call. Hooks on the module's outputs own it until backward has passed them.
class LocalModuleCall : public std::enable_shared_from_this<LocalModuleCall> {
 public:
  // Tensors that are not parameters of a unit, or are on a mesh of their own, are passed through.
  LocalModuleCall(at::TensorList parameters, at::TensorList inputs, FsdpCall::OnBackward on_backward);

  // Gathers the units and creates the unsharded tensors; with a graph if a parameter requires grad.
  void enter_forward();
  void watch(at::TensorList outputs);
  void leave_forward(at::TensorList outputs, bool keep);
  void enter_backward();
  // The gradient of one more input is complete.
  void input_done();
  void leave_backward();

  // Id of the backward pass that has reached the module; -1: none.
  int pass() const { return pass_; }
  // Whether that pass began inside another one or inside a call, as autograd.grad in a custom function does.
  bool pass_is_inner() const { return pass_is_inner_; }
  // LocalDataCall::sharded of its forward pass.
  const std::vector<DeviceMesh>& sharded_meshes() const { return *sharded_meshes_; }

  std::vector<at::Tensor> tensors;  // the tensors that replace the constructor's parameters

 private:
  void keep_memory_of(at::TensorList outputs);
  void watch_inputs();
  bool is_input(const at::Tensor& tensor) const;
  bool reduces_here() const;
  void advance_versions();

  std::vector<UnitParameter> parameters_;               // no unit: passed through
  std::vector<std::uint64_t> generations_;              // of the parameters in forward
  std::vector<std::shared_ptr<FsdpUnit::Impl>> units_;  // each once
  FsdpCall::OnBackward on_backward_;
  struct Input {
    Parameter::Weak tensor;
    const torch::autograd::Node* node;  // its grad_fn when the module was entered
  };
  std::vector<Input> inputs_;
  std::size_t watched_inputs_ = 0, inputs_done_ = 0;
  std::shared_ptr<const void> local_data_call_;        // while forward runs
  std::vector<NodePtr> accumulators_;                  // of `tensors`, which refer to them weakly
  torch::autograd::Node* unshard_backward_ = nullptr;  // behind the accumulators; null: nothing requires grad
  int pass_ = -1;
  bool pass_is_inner_ = false;
  std::shared_ptr<const std::vector<DeviceMesh>> sharded_meshes_;
};

// Parameter `member` as a regular tensor (or, if it is distributed over further axes, a DTensor on their mesh) that
// shares the gathered memory, without a graph.
at::Tensor make_unsharded_parameter(const UnitParameter& member);
// Converts a gradient of a result of make_unsharded_parameter() to a gradient of the parameter: an average over the
// axes over which the unit reduces.
at::Tensor gradient_from_unsharded(const UnitParameter& member, const at::Tensor& gradient);
// Throws if a gradient of a parameter that is not distributed on `mesh` differs between its ranks. Nothing reduces it
// there, so replicas would drift apart.
void check_equal_gradients(const std::vector<UnitParameter>& members, at::TensorList gradients, const DeviceMesh& mesh);

}  // namespace dtensor::fsdp
