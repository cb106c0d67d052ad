// Calls with local semantics. Forward: a unit is gathered when its module is entered and resharded when it is left.
// Backward: a hook on the module's outputs gathers it again. The node whose outputs are the unsharded parameters runs
// when autograd has all their gradients, and reshards the unit. See docs/design/fsdp.md, "Local semantics".
#include "parallel/fsdp/call/local_module_call.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "dtensor/hooks.h"
#include "internal/autograd_node.h"
#include "internal/simulated.h"
#include "parallel/fsdp/call/calls_in_backward.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor::fsdp {
namespace {

using torch::autograd::variable_list;

// Whether autograd.grad captures the gradients that reach this node.
bool is_captured(const torch::autograd::Node& node) {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  if (asked == nullptr) return false;
  const auto found = asked->find(const_cast<torch::autograd::Node*>(&node));
  return found != asked->end() && found->second.captures_ != nullptr;
}

// Returns the gradients of the unsharded parameters of one call as gradients of the parameters.
class UnshardBackward final : public torch::autograd::Node {
 public:
  UnshardBackward(std::vector<UnitParameter> members, std::weak_ptr<LocalModuleCall> call)
      : parameters_(std::move(members)), call_(std::move(call)) {}

  std::string name() const override { return "UnshardBackward"; }

  variable_list apply(variable_list&& gradients) override {
    variable_list result(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].unit == nullptr || !gradients[i].defined() || !task_should_compute_output(i)) continue;
      check_not_captured_inside(i);
      result[i] = gradient_from_unsharded(parameters_[i], gradients[i]);
      parameters_[i].parameter().gradient_expected |=
          parameters_[i].unit->requires_gradient_sync && !NoGradientSync::current();
    }
    const auto call = call_.lock();
    if (call) {
      for (const auto& mesh : call->sharded_meshes()) check_equal_gradients(parameters_, gradients, mesh);
    }
    // With create_graph the parameters may be needed again; in an inner pass (recomputation) the outer one continues.
    if (call && call->pass() == current_backward_id() && !at::GradMode::is_enabled()) call->leave_backward();
    return result;
  }

 private:
  // Code inside a call computes with this rank's values. What autograd captures is reduced over the ranks.
  void check_not_captured_inside(std::size_t i) const {
    const auto call = call_.lock();
    if (!call || !call->pass_is_inner() || !parameters_[i].unit->has_work()) return;
    TORCH_CHECK(!is_captured(*next_edge(i).function), "torch.autograd.grad: expected tensors of the current call, got ",
                "parameter '", parameters_[i].parameter().name, "' of an inner unit of fully_shard, whose gradient ",
                "would be the mean over ranks, not this rank's own; call autograd.grad in the forward() of that unit, ",
                "or make its module part of the outer unit");
  }

  std::vector<UnitParameter> parameters_;
  std::weak_ptr<LocalModuleCall> call_;  // owns this node's outputs
};

// The gradient accumulator of an unsharded parameter, which therefore is a leaf, as it is on one device. It passes the
// gradient on to UnshardBackward.
class UnshardedGradient final : public torch::autograd::Node {
 public:
  explicit UnshardedGradient(at::Tensor leaf) : Node(/*sequence_nr=*/UINT64_MAX), leaf_(std::move(leaf)) {}

  std::string name() const override { return "UnshardedGradient"; }
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept override {
    return torch::autograd::impl::hooks(leaf_);  // hooks that the module registers on the parameter
  }

 private:
  at::Tensor leaf_;
};

NodePtr make_leaf(const at::Tensor& tensor, const NodePtr& unshard, std::uint32_t nr) {
  tensor.set_requires_grad(true);
  if (is_dtensor(tensor)) leave_gradient_to_accumulator(DTensor(tensor));
  auto node = make_node<UnshardedGradient>(tensor);
  node->add_input_metadata(tensor);
  node->set_next_edges({{unshard, nr}});
  torch::autograd::impl::set_grad_accumulator(tensor, WeakNodePtr(NodePtr(node)));
  return node;
}

// Pre-hook on the node of a module output: backward reaches the module.
class BackwardEntered final : public torch::autograd::FunctionPreHook {
 public:
  BackwardEntered(std::shared_ptr<LocalModuleCall> call, std::size_t output)
      : call_(std::move(call)), output_(output) {}

  variable_list operator()(const variable_list& gradients) override {
    if (gradients.at(output_).defined()) call_->enter_backward();
    return gradients;
  }

 private:
  std::shared_ptr<LocalModuleCall> call_;
  std::size_t output_;
};

// Runs at the end of a backward pass, even if it throws. For calls without units (units learn the end from their
// schedule).
struct CallEnd {
  std::shared_ptr<LocalModuleCall> call;
  ~CallEnd() { call->leave_backward(); }
};

// Pre-hook on the node of a module input.
class InputDone final : public torch::autograd::FunctionPreHook {
 public:
  explicit InputDone(std::weak_ptr<LocalModuleCall> call) : call_(std::move(call)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (const auto call = call_.lock()) call->input_done();
    return gradients;
  }

 private:
  std::weak_ptr<LocalModuleCall> call_;
};

}  // namespace

LocalModuleCall::LocalModuleCall(at::TensorList parameters, at::TensorList inputs, FsdpCall::OnBackward on_backward)
    : tensors(parameters.vec()), on_backward_(std::move(on_backward)) {
  for (const auto& parameter : parameters) {
    parameters_.push_back(find_unit_parameter(parameter));
    auto& unit = parameters_.back().unit;
    if (unit != nullptr && unit->on_other_mesh) unit.reset();
    if (unit != nullptr && std::find(units_.begin(), units_.end(), unit) == units_.end()) units_.push_back(unit);
  }
  for (const auto& input : inputs) {
    if (input.defined() && !is_input(input))
      inputs_.push_back({Parameter::Weak(input.getIntrusivePtr()), input.grad_fn().get()});
  }
}

void LocalModuleCall::enter_forward() {
  for (const auto& unit : units_) unit->schedule->enter_forward(*unit);
  const LocalDataCall call{units_.empty() ? DeviceMesh() : units_.front()->mesh};
  sharded_meshes_ = call.sharded;
  local_data_call_ = open_scope(call, Recompute::restored);
  watch_inputs();
  const auto parameters = tensors;
  // Under a transform of torch.func, parameters are constants: its wrappers do not see how they are gathered.
  const c10::impl::ExcludeDispatchKeyGuard outside_transforms(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
  generations_.resize(parameters.size());
  bool trains = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].unit == nullptr) continue;
    generations_[i] = DTensor(parameters[i]).generation();
    const auto same = [&](const at::Tensor& other) { return other.is_same(parameters[i]); };
    const auto first = std::find_if(parameters.begin(), parameters.end(), same) - parameters.begin();
    const bool tied = static_cast<std::size_t>(first) < i;
    tensors[i] = tied ? tensors[static_cast<std::size_t>(first)] : make_unsharded_parameter(parameters_[i]);
    if (tied) parameters_[i].unit.reset();
    trains |= parameters[i].requires_grad();
  }
  // Regardless of grad mode: another module of the unit, or a submodule, may run in another mode.
  if (!trains) return;
  const NodePtr node = make_node<UnshardBackward>(parameters_, weak_from_this());
  unshard_backward_ = node.get();
  node->set_next_edges(torch::autograd::collect_next_edges(parameters));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto nr = node->add_input_metadata(tensors[i]);
    if (parameters_[i].unit == nullptr || !parameters[i].requires_grad()) continue;
    watch_gradient(DTensor(parameters[i]));
    accumulators_.push_back(make_leaf(tensors[i], node, nr));
  }
}

// An output may be a view of gathered memory, which then must outlive the call.
void LocalModuleCall::keep_memory_of(at::TensorList outputs) {
  for (const auto& output : outputs) {
    if (!output.defined() || is_dtensor(output) || !output.has_storage()) continue;
    for (const auto& unit : units_) {
      if (unit->shares_gathered_memory(output)) unit->aliased_by_output = true;
    }
  }
}

bool LocalModuleCall::is_input(const at::Tensor& tensor) const {
  const auto is = [&](const Input& input) {
    return input.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl() && input.node == tensor.grad_fn().get();
  };
  return std::any_of(inputs_.begin(), inputs_.end(), is);
}

// Leaves get no hook, because their hooks belong to their owner. An input that is a leaf belongs to the first module.
void LocalModuleCall::watch_inputs() {
  if (!at::GradMode::is_enabled()) return;
  for (const auto& input : inputs_) {
    const at::Tensor tensor(input.tensor.lock());
    if (!tensor.requires_grad()) continue;
    ++watched_inputs_;  // never done if a leaf: then the end of the pass applies
    if (tensor.grad_fn() != nullptr) {
      tensor.grad_fn()->add_tensor_pre_hook(std::make_unique<InputDone>(weak_from_this()));
    }
  }
}

void LocalModuleCall::watch(at::TensorList outputs) {
  keep_memory_of(outputs);
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.grad_fn() == nullptr || is_input(output)) continue;
    const auto nr = static_cast<std::size_t>(output.output_nr());
    output.grad_fn()->add_tensor_pre_hook(std::make_unique<BackwardEntered>(shared_from_this(), nr));
  }
}

void LocalModuleCall::leave_forward(at::TensorList outputs, bool keep) {
  watch(outputs);
  local_data_call_.reset();
  for (const auto& unit : units_) unit->schedule->leave_forward(*unit, keep);
}

void LocalModuleCall::enter_backward() {
  if (pass_ >= 0) return;
  pass_ = current_backward_id();
  pass_is_inner_ = ScopedValue<LocalDataCall>::current() != nullptr || CallsInBackward::any_of_another_pass(pass_);
  CallsInBackward::add(this);
  inputs_done_ = 0;
  advance_versions();
  if (units_.empty()) queue_backward_callback([end = std::make_shared<CallEnd>(shared_from_this())] {});
  for (const auto& unit : units_) {
    unit->schedule->enter_backward(*unit);
    unit->calls_in_backward.push_back(shared_from_this());
  }
  if (on_backward_) on_backward_(true);
}

// The gathered memory holds the current values of parameters that were written since forward. Autograd throws if it
// saved their tensors.
void LocalModuleCall::advance_versions() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].unit == nullptr) continue;
    const at::Tensor parameter = parameters_[i].parameter().lock();
    if (!parameter.defined() || DTensor(parameter).generation() == generations_[i]) continue;
    generations_[i] = DTensor(parameter).generation();
    tensors[i].unsafeGetTensorImpl()->bump_version();
  }
}

// Whether this pass computes gradients of the parameters, so that UnshardBackward runs when all have arrived.
bool LocalModuleCall::reduces_here() const {
  if (unshard_backward_ == nullptr) return false;
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  if (asked == nullptr || asked->empty()) return true;
  const auto found = asked->find(unshard_backward_);
  return found != asked->end() && found->second.should_execute();
}

void LocalModuleCall::input_done() {
  if (pass_ < 0 || pass_ != current_backward_id() || ++inputs_done_ < watched_inputs_) return;
  if (!at::GradMode::is_enabled() && !reduces_here()) leave_backward();
}

void LocalModuleCall::leave_backward() {
  if (std::exchange(pass_, -1) < 0) return;
  CallsInBackward::remove(this);
  const auto alive = shared_from_this();
  if (on_backward_) on_backward_(false);
  for (const auto& unit : units_) {
    std::erase(unit->calls_in_backward, alive);
    unit->schedule->leave_backward(*unit);
  }
}

}  // namespace dtensor::fsdp
