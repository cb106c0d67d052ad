// A call of a module on each rank's own data: its parameters are lent as regular tensors.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>
#include <vector>

#include "dtensor/fully_shard.h"
#include "internal/local_data.h"
#include "internal/scoped_value.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

// What one call has open. Hooks on the module's outputs keep it until backward has passed them.
class LocalCall : public std::enable_shared_from_this<LocalCall> {
 public:
  // What is no parameter of a unit, or put on a mesh of its own, is lent as it is.
  LocalCall(at::TensorList parameters, at::TensorList inputs, FsdpCall::OnBackward on_backward);

  // Gathers the units and makes the tensors; `trains`: with a graph, in which gradients reach the parameters.
  void enter_forward();
  void watch(at::TensorList outputs);
  void leave_forward(at::TensorList outputs, bool keep);
  void enter_backward();
  // The gradient of one more input is complete.
  void input_done();
  void leave_backward();

  // The backward pass that has reached the module; -1: none.
  int pass() const { return pass_; }

  std::vector<at::Tensor> tensors;  // of the constructor's parameters, what is lent

 private:
  void keep_memory_of(at::TensorList outputs);
  void watch_inputs();
  bool is_input(const at::Tensor& tensor) const;
  bool reduces_here() const;

  std::vector<UnitParameter> parameters_;               // no unit: lent as it is
  std::vector<std::shared_ptr<FsdpUnit::Impl>> units_;  // each once
  FsdpCall::OnBackward on_backward_;
  struct Input {
    Parameter::Weak tensor;
    const torch::autograd::Node* node;  // that made it, when the module was entered
  };
  std::vector<Input> inputs_;
  std::size_t watched_inputs_ = 0, inputs_done_ = 0;
  std::shared_ptr<const void> local_data_call_;        // while forward runs
  torch::autograd::Node* unshard_backward_ = nullptr;  // what the lent tensors hold; null: nothing requires grad
  int pass_ = -1;
};

// Parameter `member` as a regular tensor that shares the gathered memory (or, where it is placed on further axes, a
// DTensor of their mesh), without a graph.
at::Tensor make_unsharded_parameter(const UnitParameter& member);
// A gradient of what make_unsharded_parameter() gave, as a gradient of the parameter: an average over the axes that the
// unit reduces over.
at::Tensor gradient_from_unsharded(const UnitParameter& member, const at::Tensor& gradient);

}  // namespace dtensor::fsdp
