// Calls with local semantics. Forward: a unit is gathered when its module is entered and resharded when it is left.
// Backward: a hook on the module's outputs gathers it again. The node whose outputs are the unsharded parameters runs
// when autograd has all their gradients, and reshards the unit. See docs/design/fsdp.md, "Local semantics".
#include "parallel/fsdp/call/local_data_call.h"

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
#include "parallel/fsdp/schedule.h"
#include "parallel/mesh_slice.h"

namespace dtensor::fsdp {
namespace {

using torch::autograd::variable_list;

// Returns the gradients of the unsharded parameters of one call as gradients of the parameters.
class UnshardBackward final : public torch::autograd::Node {
 public:
  UnshardBackward(std::vector<UnitParameter> members, std::weak_ptr<LocalCall> call)
      : parameters_(std::move(members)), call_(std::move(call)) {}

  std::string name() const override { return "UnshardBackward"; }

  variable_list apply(variable_list&& gradients) override {
    variable_list result(parameters_.size());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].unit == nullptr || !gradients[i].defined() || !task_should_compute_output(i)) continue;
      result[i] = gradient_from_unsharded(parameters_[i], gradients[i]);
      parameters_[i].parameter().gradient_expected |=
          parameters_[i].unit->requires_gradient_sync && !NoGradientSync::current();
    }
    const auto call = call_.lock();
    // With create_graph the parameters may be needed again; in an inner pass (recomputation) the outer one continues.
    if (call && call->pass() == current_backward_id() && !at::GradMode::is_enabled()) call->leave_backward();
    return result;
  }

 private:
  std::vector<UnitParameter> parameters_;
  std::weak_ptr<LocalCall> call_;  // owns this node's outputs
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
  BackwardEntered(std::shared_ptr<LocalCall> call, std::size_t output) : call_(std::move(call)), output_(output) {}

  variable_list operator()(const variable_list& gradients) override {
    if (gradients.at(output_).defined()) call_->enter_backward();
    return gradients;
  }

 private:
  std::shared_ptr<LocalCall> call_;
  std::size_t output_;
};

// Runs at the end of a backward pass, even if it throws. For calls without units (units learn the end from their
// schedule).
struct CallEnd {
  std::shared_ptr<LocalCall> call;
  ~CallEnd() { call->leave_backward(); }
};

// Pre-hook on the node of a module input.
class InputDone final : public torch::autograd::FunctionPreHook {
 public:
  explicit InputDone(std::weak_ptr<LocalCall> call) : call_(std::move(call)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (const auto call = call_.lock()) call->input_done();
    return gradients;
  }

 private:
  std::weak_ptr<LocalCall> call_;
};

at::Tensor gathered_memory(const UnitParameter& member, const DTensor& parameter) {
  auto& p = member.parameter();
  if (p.in_flat_buffer && p.has_original_layout(parameter)) {
    if (!member.unit->is_gathered())
      return at::empty(p.layout.sizes, at::TensorOptions(p.gather_dtype()));  // no elements
    return view_of(member.unit->flat, p.gather_dtype(), p.layout.sizes, p.layout.strides, p.offset);
  }
  // A parameter that was converted (module.to(dtype)) computes in its new dtype, unless the unit has a param_dtype.
  const auto local = gathered_local(parameter, p.unsharded_placements);
  const auto dtype = p.param_dtype.value_or(local.scalar_type());
  return local.scalar_type() == dtype ? local.alias() : local.to(dtype);
}

}  // namespace

at::Tensor make_unsharded_parameter(const UnitParameter& member) {
  const at::NoGradGuard no_grad;
  auto& p = member.parameter();
  const auto tensor = p.lock();
  TORCH_CHECK(tensor.defined(), "fully_shard: parameter '", p.name,
              "' was freed, but others of its unit are used; keep all parameters of the model alive");
  p.check_initialized(DTensor(tensor));
  auto local = gathered_memory(member, DTensor(tensor));
  if (!p.tp_axes.mesh) return local;
  return DTensor::from_local(local, p.tp_axes.mesh, p.tp_axes.placements, p.sizes, p.strides);
}

at::Tensor gradient_from_unsharded(const UnitParameter& member, const at::Tensor& gradient) {
  const auto& unit = *member.unit;
  const auto& p = member.parameter();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !gradient.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched})),
      "fully_shard: expected one gradient of parameter '", p.name,
      "', got a batch of them (is_grads_batched = true, torch.func.vmap). Ranks reduce the gradient of a ",
      "parameter: compute one after the other, or batch gradients of inputs");
  Placements placements = p.unsharded_placements;
  at::Tensor local = gradient;
  if (is_dtensor(gradient)) {
    const DTensor further(gradient);
    placements = lifted_placements(further, unit.mesh);
    local = further.to_local();
  }
  for (const auto axis : unit.axes.shard) placements[static_cast<std::size_t>(axis)] = Partial(ReduceOp::avg);
  if (unit.axes.replicate >= 0) placements[static_cast<std::size_t>(unit.axes.replicate)] = Partial(ReduceOp::avg);
  return DTensor::from_local(local, unit.mesh, placements, p.sizes, p.strides);
}

LocalCall::LocalCall(at::TensorList parameters, at::TensorList inputs, FsdpCall::OnBackward on_backward)
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

void LocalCall::enter_forward() {
  for (const auto& unit : units_) unit->schedule->enter(*unit);
  local_data_call_ =
      open_scope(LocalDataCall{units_.empty() ? DeviceMesh() : units_.front()->mesh}, Recompute::restored);
  watch_inputs();
  const auto parameters = tensors;
  // Under a transform of torch.func, parameters are constants: its wrappers do not see how they are gathered.
  const c10::impl::ExcludeDispatchKeyGuard outside_transforms(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
  bool trains = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].unit == nullptr) continue;
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
void LocalCall::keep_memory_of(at::TensorList outputs) {
  for (const auto& output : outputs) {
    if (!output.defined() || is_dtensor(output) || !output.has_storage()) continue;
    for (const auto& unit : units_) {
      if (unit->is_gathered() && shares_storage(output, unit->flat)) unit->aliased_by_output = true;
    }
  }
}

bool LocalCall::is_input(const at::Tensor& tensor) const {
  const auto is = [&](const Input& input) {
    return input.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl() && input.node == tensor.grad_fn().get();
  };
  return std::any_of(inputs_.begin(), inputs_.end(), is);
}

// Leaves get no hook, because their hooks belong to their owner. An input that is a leaf belongs to the first module.
void LocalCall::watch_inputs() {
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

void LocalCall::watch(at::TensorList outputs) {
  keep_memory_of(outputs);
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.grad_fn() == nullptr || is_input(output)) continue;
    const auto nr = static_cast<std::size_t>(output.output_nr());
    output.grad_fn()->add_tensor_pre_hook(std::make_unique<BackwardEntered>(shared_from_this(), nr));
  }
}

void LocalCall::leave_forward(at::TensorList outputs, bool keep) {
  watch(outputs);
  local_data_call_.reset();
  for (const auto& unit : units_) unit->schedule->leave(*unit, keep);
}

void LocalCall::enter_backward() {
  if (pass_ >= 0) return;
  pass_ = current_backward_id();
  inputs_done_ = 0;
  if (units_.empty()) queue_backward_callback([end = std::make_shared<CallEnd>(shared_from_this())] {});
  for (const auto& unit : units_) {
    unit->schedule->enter_backward(*unit);
    unit->calls_in_backward.push_back(shared_from_this());
  }
  if (on_backward_) on_backward_(true);
}

// Whether this pass computes gradients of the parameters, so that UnshardBackward runs when all have arrived.
bool LocalCall::reduces_here() const {
  if (unshard_backward_ == nullptr) return false;
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  if (asked == nullptr || asked->empty()) return true;
  const auto found = asked->find(unshard_backward_);
  return found != asked->end() && found->second.should_execute();
}

void LocalCall::input_done() {
  if (pass_ < 0 || pass_ != current_backward_id() || ++inputs_done_ < watched_inputs_) return;
  if (!at::GradMode::is_enabled() && !reduces_here()) leave_backward();
}

void LocalCall::leave_backward() {
  if (std::exchange(pass_, -1) < 0) return;
  const auto alive = shared_from_this();
  if (on_backward_) on_backward_(false);
  for (const auto& unit : units_) {
    std::erase(unit->calls_in_backward, alive);
    unit->schedule->leave_backward(*unit);
  }
}

void Schedule::enter(Unit& unit) {
  TORCH_CHECK(unit.mesh.is_member(), "fully_shard: expected a call of the module on a rank of ", unit.mesh.str(),
              " only");
  begin_use(unit);
  if (recomputed_ != nullptr && recomputed_ != &unit) release(*std::exchange(recomputed_, nullptr));
  if (unit.flat_bytes > 0) {
    if (!unit.is_gathered() || !unit.all_fresh()) gather(unit);
    finish_gather(unit);
  }
  ++unit.active_calls;
  unit.unsharded_in_module = true;
  unit.prefetched = false;
  if (std::find(running_.begin(), running_.end(), &unit) != running_.end()) return;
  running_.push_back(&unit);
  prefetch(unit);
}

// Whether the last backward pass began with this unit, not counting units whose calls enclose it.
bool Schedule::is_first_in_backward(const Unit& unit) const {
  const auto& order = order_[kBackward];
  const auto first =
      std::find_if(order.begin(), order.end(), [](const Unit* other) { return other->active_calls == 0; });
  return first != order.end() && *first == &unit;
}

// Keeps the unit with which backward begins; in backward, the unit that was recomputed last.
void Schedule::leave(Unit& unit, bool keep) {
  if (--unit.active_calls > 0 || !unit.reshards) return;
  if (!at::GradMode::is_enabled() && !RecomputeGuard::current()) return release(unit);
  if (current_backward_id() >= 0) {
    recomputed_ = &unit;
  } else if (!keep && is_first_in_backward(unit)) {
    kept_after_forward_ = &unit;
    first_used_after_kept_ = nullptr;
  } else if (!keep) {
    release(unit);
  }
}

void Schedule::enter_backward(Unit& unit) {
  enter(unit);
  for (auto& pass : passes_) pass.makes_graph |= pass.id == current_backward_id() && at::GradMode::is_enabled();
}

void Schedule::leave_backward(Unit& unit) {
  if (--unit.active_calls == 0 && unit.reshards_after_backward) release(unit);
}

void Schedule::leave_calls(int pass) {
  for (auto* unit : units_) {
    const auto calls = unit->calls_in_backward;
    for (const auto& call : calls) {
      if (call->pass() == pass) call->leave_backward();
    }
  }
}

// Backward of the graph that a pass created reads the parameters before it reaches any hook on module outputs.
void Schedule::keep_for_graph(int pass) {
  const auto makes_graph = [&](const Pass& open) { return open.id == pass && open.makes_graph; };
  const bool keep = std::any_of(passes_.begin(), passes_.end(), makes_graph);
  for (auto* unit : units_) {
    if (keep && !unit->calls_in_backward.empty()) unit->kept_for_graph = true;
    if (!keep && (unit->arrivals > 0 || unit->frozen())) unit->kept_for_graph = false;
  }
}

Schedule::PassEnd::~PassEnd() {
  try {
    schedule.leave_calls(pass);
  } catch (...) {  // a failed gather; the pass has failed already
  }
}

}  // namespace dtensor::fsdp
