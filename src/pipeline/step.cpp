// Runs actions in order; sends do not block, receives do. The loss of a microbatch is weighted by its share of the
// entire batch, so unequal microbatches give the mean of one device.
#include "pipeline/step.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "dtensor/debug.h"
#include "dtensor/dry_run.h"
#include "dtensor/fully_shard.h"
#include "dtensor/tensor.h"
#include "internal/scoped_value.h"

namespace dtensor::pipeline {
namespace {

// The inputs of the next stage if it is on this rank: detached leaves, as a message would create.
Tensors as_leaves(const Tensors& outputs) {
  Tensors leaves;
  for (const at::Tensor& output : outputs) {
    leaves.push_back(output.defined() ? output.detach() : output);
    if (output.defined() && output.requires_grad()) leaves.back().requires_grad_();
  }
  return leaves;
}

// The outputs that have a gradient, and their gradients.
std::pair<Tensors, Tensors> with_gradients(const Tensors& outputs, const Tensors& gradients) {
  std::pair<Tensors, Tensors> result;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
    result.first.push_back(outputs[i]);
    result.second.push_back(gradients[i]);
  }
  return result;
}

// A step runs forward and backward in one call, possibly under the caller's autocast. Disables autocast for backward;
// otherwise full-precision computation of a stage would have low-precision gradients.
class AutocastDisabled {
 public:
  explicit AutocastDisabled(c10::DeviceType device)
      : device_(device), outer_state_(at::autocast::is_autocast_enabled(device)) {
    if (outer_state_) at::autocast::set_autocast_enabled(device_, false);
  }
  ~AutocastDisabled() {
    if (outer_state_) at::autocast::set_autocast_enabled(device_, true);
  }
  AutocastDisabled(const AutocastDisabled&) = delete;
  AutocastDisabled& operator=(const AutocastDisabled&) = delete;

 private:
  c10::DeviceType device_;
  bool outer_state_;
};

}  // namespace

Step::Step(const StepContext& context, StageMessages& messages)
    : context_(context),
      messages_(messages),
      last_(context.schedule.stages() - 1),
      trains_(context.schedule.has(Action::Kind::backward) || context.schedule.has(Action::Kind::backward_input)),
      random_(get_rng_state(context.mesh)) {
  for (const Action& action : context.schedule.ranks[static_cast<std::size_t>(context.rank)]) {
    const bool full = action.kind == Action::Kind::backward;
    StageState& state = states_[action.stage];
    state.name = "stage " + std::to_string(action.stage);
    state.inputs_left += full || action.kind == Action::Kind::backward_input;
    state.weights_left += full || action.kind == Action::Kind::backward_weight;
    state.unshards |= action.kind == Action::Kind::unshard;
    state.reduces |= action.kind == Action::Kind::reduce_grad;
  }
  for (auto& [stage, state] : states_) state.units = units_of(context.stages.at(stage).list());
}

void Step::run() {
  using Clock = std::chrono::steady_clock;
  begin_ = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin_).count(); };
  for (const Action& action : context_.schedule.ranks[static_cast<std::size_t>(context_.rank)]) {
    StepRecorder::mark(to_string(action));
    const double begin = seconds();
    failure_.empty() ? attempt(action) : skip(action);
    actions_.push_back({action, begin, seconds()});
  }
  StepRecorder::mark("end of the schedule");
  messages_.finish();
}

std::vector<int> Step::live_activations() const {
  std::vector<int> most;
  for (const auto& [stage, state] : states_) most.push_back(state.most);
  return most;
}

int Step::channel(int stage, int microbatch, bool forward) const {
  return (stage * 2 + (forward ? 0 : 1)) * context_.schedule.microbatches() + microbatch;
}

void Step::run(const Action& action) {
  const int s = action.stage;
  const auto [peer, channel] = route_of(action);
  switch (action.kind) {
    case Action::Kind::forward:
      return forward(action);
    case Action::Kind::backward:
    case Action::Kind::backward_input:
      return backward(action);
    case Action::Kind::backward_weight:
      return weight(action);
    case Action::Kind::send_forward:
      return messages_.send(slot(action).outputs, slot(action).where, peer, channel);
    case Action::Kind::recv_forward:
      std::tie(slot(action).inputs, slot(action).where) = messages_.receive(peer, channel);
      return;
    case Action::Kind::send_backward:
      messages_.send(slot(action).input_gradients, {}, peer, channel);
      return slot(action).input_gradients.clear();
    case Action::Kind::recv_backward:
      slot(action).output_gradients = messages_.receive(peer, channel).first;
      return;
    case Action::Kind::unshard:
      for (const FsdpUnit& unit : states_[s].units) unit.unshard();
      return;
    case Action::Kind::reshard:
      for (const FsdpUnit& unit : states_[s].units) unit.reshard();
      return;
    case Action::Kind::reduce_grad:
      if (!NoGradientSync::current()) reduce_gradients(context_.stages.at(s).list());
      return;
  }
}

// In evaluation, frees what no later action needs. Outputs are needed until they are sent; a next stage on this rank
// has copies.
void Step::forget(const Action& action) {
  const bool sent = action.kind == Action::Kind::send_forward;
  const bool stays = action.kind == Action::Kind::forward && (action.stage == last_ || is_local(action.stage + 1));
  if (action.kind == Action::Kind::forward) slot(action).inputs.clear();
  if (sent || stays) slot(action).outputs.clear();
}

MicrobatchState Step::initial_microbatch_state(int microbatch) const {
  const auto rows_of = [](const Tensors& inputs) {  // undefined inputs have no rows
    const auto has_rows = [](const at::Tensor& input) { return input.defined() && input.dim() > 0; };
    const auto first = std::find_if(inputs.begin(), inputs.end(), has_rows);
    return first == inputs.end() ? std::int64_t{0} : first->size(0);
  };
  MicrobatchState where;
  for (std::size_t m = 0; m < context_.inputs.size(); ++m) {
    const std::int64_t rows = rows_of(context_.inputs[m]);
    if (m == static_cast<std::size_t>(microbatch)) where.rows.first = where.rows.total, where.rows.count = rows;
    where.rows.total += rows;
  }
  // The step may compute some rows of a larger batch (gradient accumulation over steps).
  if (const auto* piece = ScopedValue<MicrobatchRandomScope::Range>::current();
      piece && piece->count == where.rows.total) {
    where.rows = {piece->first + where.rows.first, where.rows.count, piece->total};
  }
  return where;
}

void Step::forward(const Action& action) {
  const ModuleScope scope(states_[action.stage].name);
  Slot& mine = slot(action);
  if (action.stage == 0) {
    mine.inputs = context_.inputs.at(static_cast<std::size_t>(action.microbatch));
    mine.where = initial_microbatch_state(action.microbatch);
  }
  {
    const MicrobatchRandomScope rows(mine.where.rows);
    set_rng_state(context_.mesh, {random_.seed, random_.counter + mine.where.random_operators});
    mine.outputs = context_.stages.at(action.stage).forward(mine.inputs);
    if (action.stage == last_) add_loss(mine, action.microbatch);  // the loss may draw random numbers
    mine.where.random_operators = get_rng_state(context_.mesh).counter - random_.counter;
    random_operators_ = std::max(random_operators_, mine.where.random_operators);
  }
  reshard_after_forward(action.stage);
  StageState& state = states_[action.stage];
  state.most = std::max(state.most, ++state.now);
  if (is_local(action.stage + 1)) {
    Slot& next = slots_[{action.stage + 1, action.microbatch}];
    next.inputs = as_leaves(mine.outputs);
    next.where = mine.where;
  }
}

void Step::add_loss(Slot& mine, int microbatch) {
  const auto index = static_cast<std::size_t>(microbatch);
  const at::Tensor loss = context_.loss(mine.outputs, context_.targets.at(index));
  TORCH_CHECK(loss.numel() == 1, "pipeline: expected the loss of microbatch ", microbatch,
              " to be one number, got sizes ", loss.sizes());
  const double share = context_.shares.at(index);
  if (share == 0) {  // no valid target: the mean may be NaN
    mine.outputs = {loss};
    mine.output_gradients = {at::Tensor()};
    return;
  }
  const at::Tensor part = loss.detach().to(at::kDouble).reshape({}).mul(share);
  loss_ = loss_.defined() ? loss_ + part : part;
  mine.outputs = {loss};
  mine.output_gradients = {at::full_like(loss, share * context_.loss_scale)};
}

void Step::backward(const Action& action) {
  const ModuleScope scope(states_[action.stage].name);
  const bool splits = action.kind == Action::Kind::backward_input;
  Slot& mine = slot(action);
  {
    const AutocastDisabled wide(context_.mesh.device_type());
    const bool reduces = synchronizes(action);
    std::optional<NoGradientSync> later;
    if (!splits && !reduces) later.emplace();
    const MicrobatchRandomScope rows(mine.where.rows);  // for recomputation
    mine.input_gradients = run_backward(mine, splits, reduces);
  }
  StageState& state = states_[action.stage];
  --state.inputs_left;
  state.halves += mine.split && !mine.split->empty();
  if (action.stage == 0) keep_input_gradients(mine, splits);
  mine.inputs.clear();
  mine.outputs.clear();
  mine.output_gradients.clear();
  if (!splits) end_of_microbatch(action.stage);
  if (action.stage > 0 && is_local(action.stage - 1)) {
    slots_[{action.stage - 1, action.microbatch}].output_gradients = std::move(mine.input_gradients);
    mine.input_gradients.clear();
  }
}

// Returns the gradients of the inputs, undefined if they require none or none arrived.
Tensors Step::run_backward(Slot& mine, bool splits, bool reduces) {
  const auto [outputs, gradients] = with_gradients(mine.outputs, mine.output_gradients);
  const auto wants = [](const at::Tensor& input) { return input.defined() && input.requires_grad(); };
  Tensors leaves;
  std::copy_if(mine.inputs.begin(), mine.inputs.end(), std::back_inserter(leaves), wants);
  Tensors found(leaves.size());
  if (!outputs.empty() && splits) {
    found = mine.split.emplace().backward_input(outputs, gradients, leaves, reduces);
  } else if (!outputs.empty()) {
    torch::autograd::backward(outputs, gradients);
    for (std::size_t i = 0; i < leaves.size(); ++i) found[i] = leaves[i].grad();
  }
  Tensors all;
  std::size_t next = 0;
  for (const at::Tensor& input : mine.inputs) all.push_back(wants(input) ? found[next++] : at::Tensor());
  return all;
}

// Adds gradients of the batch to .grad, where the user finds them; a fused backward has done so already. The sum has
// its own memory, because autograd may return one tensor for several inputs, or one that backward_weight still needs.
void Step::keep_input_gradients(Slot& mine, bool splits) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; splits && i < mine.inputs.size(); ++i) {
    const at::Tensor& gradient = mine.input_gradients[i];
    const auto same = [&](const at::Tensor& input) { return input.is_same(mine.inputs[i]); };
    const auto here = mine.inputs.begin() + static_cast<std::ptrdiff_t>(i);
    if (!gradient.defined() || std::any_of(mine.inputs.begin(), here, same)) continue;
    at::Tensor& sum = mine.inputs[i].mutable_grad();
    sum.defined() ? static_cast<void>(sum.add_(gradient)) : static_cast<void>(sum = gradient.clone());
  }
  mine.input_gradients.clear();
}

// Reduces the gradients of the batch. Backward reduced only those of the last microbatch.
void Step::reduce_input_gradients() {
  if (!trains_ || !is_local(0) || NoGradientSync::current()) return;
  Tensors wanted;
  for (const Tensors& inputs : context_.inputs) {
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.requires_grad()) wanted.push_back(input);
    }
  }
  reduce_gradients(wanted);
}

// Frees gathered parameters after the action, unless the unit's options or the schedule keep them.
void Step::reshard_after_forward(int stage) {
  if (states_[stage].unshards) return;
  for (const FsdpUnit& unit : states_[stage].units) {
    const bool* reshards = std::get_if<bool>(&unit.options().reshard_after_forward);
    if (reshards == nullptr || *reshards) unit.reshard();
  }
}

void Step::weight(const Action& action) {
  const ModuleScope scope(states_[action.stage].name);
  Slot& mine = slot(action);
  {
    const AutocastDisabled wide(context_.mesh.device_type());
    std::optional<NoGradientSync> later;
    if (!synchronizes(action)) later.emplace();
    if (mine.split && !mine.split->empty()) {
      mine.split->backward_weight();
      --states_[action.stage].halves;
    }
    mine.split.reset();
  }
  end_of_microbatch(action.stage);
}

// Whether the stage's gradients are reduced when they are computed: not if the schedule has REDUCE_GRAD, or under
// NoGradientSync.
bool Step::reduces_here(int stage) { return !states_[stage].reduces && !NoGradientSync::current(); }

// Whether this is the last action of the step that computes gradients of the stage's weights: the last W, or the last I
// if recomputed segments leave nothing to W. An I that leaves work to W reduces nothing.
bool Step::synchronizes(const Action& action) {
  const StageState& state = states_[action.stage];
  const bool last = action.kind == Action::Kind::backward_weight ? state.inputs_left == 0 && state.halves == 1
                                                                 : state.inputs_left == 1 && state.halves == 0;
  return last && reduces_here(action.stage);
}

void Step::end_of_microbatch(int stage) {
  StageState& state = states_[stage];
  const bool last = --state.weights_left == 0;
  if (last && reduces_here(stage))
    reduce_gradients(context_.stages.at(stage).list());  // gradients that backward did not reach
  --state.now;
}

}  // namespace dtensor::pipeline
