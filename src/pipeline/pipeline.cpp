// The public class: state between steps, argument checks, and agreement of all ranks before and after a step.
#include "dtensor/pipeline.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "dtensor/tensor.h"
#include "internal/action_kinds.h"
#include "internal/aten_scopes.h"
#include "internal/ranks/simulated_rank.h"
#include "internal/simulated.h"
#include "object_collectives/object_collectives.h"
#include "pipeline/grad_norm.h"
#include "pipeline/step.h"
#include "pipeline/tied_parameters.h"

namespace dtensor::pipeline {
namespace {

// The ranks at `coordinate` of an axis, as a mesh of the other axes; undefined if there are none.
DeviceMesh slice_of(const DeviceMesh& mesh, const std::string& axis, std::int64_t coordinate) {
  const auto dim = static_cast<std::size_t>(mesh.dim(axis));
  std::vector<std::int64_t> shape = mesh.shape().vec(), ranks;
  std::vector<std::string> names = mesh.names();
  for (const std::int64_t rank : mesh.ranks()) {
    if (mesh.coordinate_of(rank).value()[dim] == coordinate) ranks.push_back(rank);
  }
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
  names.erase(names.begin() + static_cast<std::ptrdiff_t>(dim));
  return shape.empty() ? DeviceMesh() : device_mesh(mesh.world(), mesh.device_type(), ranks, shape, names);
}

bool communicates(const Schedule& schedule) {
  const auto sends = [](const Action& action) { return is_communication(action.kind); };
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(),
                     [&](const auto& actions) { return std::any_of(actions.begin(), actions.end(), sends); });
}

// A stage gathers parameters when it uses them and reduces gradients in its last backward of a step.
constexpr CommunicationOptions kMessagesOnly{.unsharded_stages = std::nullopt, .reduce_grad = false};

Schedule complete(Schedule schedule) {
  return communicates(schedule) ? schedule : with_communication(schedule, kMessagesOnly);
}

// Turns an error of some ranks into an error of all; the others would wait for messages. `error`: this rank's; if
// empty, throws PeerError. Collective.
void raise_everywhere(const std::string& error, const Communicator& ranks) {
  const LocalNoGradGuard scope;
  const at::Tensor first = at::full({1}, error.empty() ? ranks.size() : ranks.rank(), at::kLong);
  ranks.all_reduce(first, ReduceOp::min).wait();
  const auto who = static_cast<int>(first.item<std::int64_t>());
  if (who == ranks.size()) return;
  const std::string text = broadcast_string(ranks, error, who);
  if (error.empty()) throw PeerError({__func__, __FILE__, __LINE__}, text);
  TORCH_CHECK(false, text);
}

// The text of the error that `fn` throws; "": none.
template <class Fn>
std::string mistake_in(const Fn& fn) {
  try {
    fn();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return c10::str("pipeline: the weight of a microbatch: ", e.what());
  }
  return "";
}

}  // namespace

struct Pipeline::Impl {
  DeviceMesh mesh, slice;
  Communicator line;
  Schedule schedule, evaluation;
  LossFunction loss;
  PipelineOptions options;
  int rank = 0, last = 0;
  std::vector<int> own;
  std::map<int, Stage> stages;
  std::vector<TiedParameter> tied;

  bool has_last() const { return stages.contains(last); }
  void set_stage(int stage, Stage what);
  void check_step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets) const;
  void check_leaves(const std::vector<Tensors>& inputs) const;
  bool stage_agrees(bool right) const;
  std::vector<double> shares(const std::vector<Tensors>& targets) const;
  std::vector<double> checked_shares(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets,
                                     bool trains) const;
  StepResult run(const Schedule& what, const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets,
                 const std::vector<double>& part, double loss_scale);
  at::Tensor agree(const Step& step, const RngState& before) const;
};

Pipeline::Pipeline(const DeviceMesh& mesh, Schedule schedule, LossFunction loss, PipelineOptions options)
    : impl_(std::make_unique<Impl>()) {
  Impl& p = *impl_;
  p.mesh = mesh;
  p.options = std::move(options);
  p.loss = std::move(loss);
  const auto size = mesh.size(p.options.axis);
  TORCH_CHECK(static_cast<std::int64_t>(schedule.ranks.size()) == size, "pipeline: expected a schedule for ", size,
              " ranks, the size of axis ", p.options.axis, " of ", mesh.str(), ", got one for ", schedule.ranks.size());
  p.schedule = complete(std::move(schedule));
  TORCH_CHECK(check(p.schedule).in_order,
              "pipeline: expected each rank to receive messages of a peer in the order in which the peer sends them, "
              "got the schedule\n",
              p.schedule.str());
  Schedule compute = p.schedule;
  for (auto& actions : compute.ranks) std::erase_if(actions, [](const Action& a) { return !is_compute(a.kind); });
  p.evaluation = with_communication(forward_only(compute), kMessagesOnly);
  p.last = p.schedule.stages() - 1;
  if (!mesh.is_member()) return;
  p.line = mesh.communicator(p.options.axis);
  simulate_all_members(p.line);
  p.slice = slice_of(mesh, p.options.axis, p.line.rank());
  p.rank = p.line.rank();
  for (int stage = 0; stage <= p.last; ++stage) {
    if (p.schedule.rank_of(stage) == p.rank) p.own.push_back(stage);
  }
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;

Pipeline::Impl& Pipeline::impl() const {
  TORCH_CHECK(impl_ != nullptr, "pipeline: expected a Pipeline, got one that was moved from");
  return *impl_;
}

const std::vector<int>& Pipeline::stages() const { return impl().own; }
int Pipeline::last_stage() const { return impl().last; }
DeviceMesh Pipeline::stage_mesh() const { return impl().slice; }
DeviceMesh Pipeline::stage_mesh(int stage) const {
  return slice_of(impl().mesh, impl().options.axis, impl().schedule.rank_of(stage));
}
const Schedule& Pipeline::schedule() const { return impl().schedule; }

void Pipeline::set_stage(int stage, StageFunction forward, std::vector<at::Tensor> parameters) {
  impl().set_stage(stage, {std::move(forward), std::move(parameters)});
}
void Pipeline::set_stage(int stage, StageFunction forward) {
  impl().set_stage(stage, {std::move(forward), std::nullopt});
}

void Pipeline::Impl::set_stage(int stage, Stage what) {
  TORCH_CHECK(std::count(own.begin(), own.end(), stage) == 1, "pipeline: expected a stage of rank ", rank, " of ",
              options.axis, " (", c10::Join(", ", own), "), got stage ", stage);
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    const bool needs = action.kind == Action::Kind::unshard || action.kind == Action::Kind::reduce_grad;
    TORCH_CHECK(what.parameters || !needs || action.stage != stage, "pipeline: the schedule has ", to_string(action),
                ", but set_stage was given no parameters of stage ", stage);
  }
  stages[stage] = std::move(what);
}

void Pipeline::tie(const std::string& name, const std::vector<at::Tensor>& copies) {
  Impl& p = impl();
  if (!p.mesh.is_member()) return;
  std::string error;  // a copy with two names would be summed twice
  for (const TiedParameter& other : p.tied) {
    if (std::any_of(copies.begin(), copies.end(), [&](const at::Tensor& copy) { return other.is_copy(copy); }))
      error = c10::str("pipeline: a copy of ", name, " is one of ", other.name(), " already; tie all copies at once");
  }
  raise_everywhere(error, p.mesh.communicator());
  p.tied.emplace_back(name, p.line, copies);
}

void Pipeline::Impl::check_step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets) const {
  const auto count = static_cast<std::size_t>(schedule.microbatches());
  for (const int stage : own)
    TORCH_CHECK(stages.contains(stage), "pipeline: stage ", stage, " was never set; call set_stage");
  TORCH_CHECK(!stages.contains(0) || inputs.size() == count, "pipeline: expected inputs of ", count,
              " microbatches, got ", inputs.size());
  TORCH_CHECK(!has_last() || targets.size() == count, "pipeline: expected targets of ", count, " microbatches, got ",
              targets.size());
}

void Pipeline::Impl::check_leaves(const std::vector<Tensors>& inputs) const {
  for (std::size_t m = 0; stages.contains(0) && m < inputs.size(); ++m) {
    for (const at::Tensor& input : inputs[m]) {
      TORCH_CHECK(
          !input.defined() || !input.requires_grad() || input.is_leaf(), "pipeline: an input of microbatch ", m,
          " requires a gradient and is the result of operators; expected a leaf: move the operators into stage 0");
    }
  }
}

// Whether `right` holds on all ranks of the last stage, whose weights may be collective. Elsewhere: `right`.
bool Pipeline::Impl::stage_agrees(bool right) const {
  if (schedule.rank_of(last) != rank || !slice || slice.size() == 1) return right;
  const LocalNoGradGuard scope;
  const at::Tensor all = at::full({1}, right ? 1 : 0, at::kLong);
  slice.communicator().all_reduce(all, ReduceOp::min).wait();
  return all.item<std::int64_t>() == 1;
}

std::vector<double> Pipeline::Impl::shares(const std::vector<Tensors>& targets) const {
  if (!has_last()) return {};
  if (!options.weight) return std::vector<double>(targets.size(), 1.0);
  std::vector<double> weights;
  double total = 0;
  for (const Tensors& t : targets) {
    const double weight = weights.emplace_back(options.weight(t));
    TORCH_CHECK(weight >= 0 && std::isfinite(weight),
                "pipeline: expected a finite non-negative weight of a microbatch, got ", weight);
    total += weight;
  }
  TORCH_CHECK(total > 0, "pipeline: expected microbatches with a total weight > 0, got ", total,
              "; no target is valid");
  for (double& weight : weights) weight /= total;
  return weights;
}

// Checks all arguments before any action runs. Returns the weight of each microbatch, on the last stage's ranks.
std::vector<double> Pipeline::Impl::checked_shares(const std::vector<Tensors>& inputs,
                                                   const std::vector<Tensors>& targets, bool trains) const {
  std::vector<double> result;
  std::string error = mistake_in([&] {
    TORCH_CHECK(!trains || (at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled()),
                "pipeline: step() computes gradients, which NoGradGuard and InferenceMode disable; use evaluate()");
    check_step(inputs, targets);
    if (trains) check_leaves(inputs);
  });
  if (stage_agrees(error.empty())) error = mistake_in([&] { result = shares(targets); });
  raise_everywhere(error, mesh.communicator());
  return result;
}

// Broadcasts the loss and the number of random operators from the last stage, so that random states agree again.
at::Tensor Pipeline::Impl::agree(const Step& step, const RngState& before) const {
  at::Tensor values = at::zeros({2}, at::TensorOptions(at::kDouble).device(mesh.device_type()));
  if (step.loss().defined())
    values[0].copy_(is_dtensor(step.loss()) ? DTensor(step.loss()).full_tensor() : step.loss());
  values[1] = static_cast<double>(step.random_operators());
  line.broadcast(values, schedule.rank_of(last)).wait();
  const auto drawn = item_or(values[1], static_cast<double>(step.random_operators()));
  set_rng_state(mesh, {before.seed, before.counter + static_cast<std::uint64_t>(drawn)});
  return values[0].clone();
}

StepResult Pipeline::Impl::run(const Schedule& what, const std::vector<Tensors>& inputs,
                               const std::vector<Tensors>& targets, const std::vector<double>& part,
                               double loss_scale) {
  StageMessages messages(line, slice);
  const RngState before = get_rng_state(mesh);
  const StepContext context{mesh, what, rank, stages, loss, inputs, targets, part, loss_scale};
  Step step(context, messages);
  try {
    step.run();
    raise_everywhere(step.thrown() ? step.failure() : "", mesh.communicator());
    step.finish();
  } catch (...) {
    set_rng_state(mesh, before);  // ranks have advanced it differently
    if (step.thrown()) std::rethrow_exception(step.thrown());
    throw;
  }
  const LocalNoGradGuard scope;
  return {agree(step, before), step.live_activations(), step.actions(), step.begin()};
}

StepResult Pipeline::step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets,
                          StepOptions options) {
  Impl& p = impl();
  if (!p.mesh.is_member()) return {};
  const auto part = p.checked_shares(inputs, targets, true);  // before gradients are stashed
  for (TiedParameter& parameter : p.tied) parameter.begin_step();
  try {
    StepResult result = p.run(p.schedule, inputs, targets, part, options.loss_scale);
    for (TiedParameter& parameter : p.tied) parameter.end_step();
    return result;
  } catch (...) {
    for (TiedParameter& parameter : p.tied) parameter.abandon_step();
    throw;
  }
}

at::Tensor Pipeline::evaluate(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets) {
  Impl& p = impl();
  if (!p.mesh.is_member()) return {};
  const auto part = p.checked_shares(inputs, targets, false);
  const at::NoGradGuard no_grad;
  return p.run(p.evaluation, inputs, targets, part, 1).loss;
}

at::Tensor Pipeline::clip_grad_norm_(double max_norm) {
  const Impl& p = impl();
  if (!p.mesh.is_member()) return {};
  return pipeline::clip_grad_norm_({p.own, p.stages, p.tied, p.last, p.line, p.mesh.device_type(), p.slice}, max_norm);
}

void Pipeline::set_placeholder_gradients(const std::vector<at::Tensor>& parameters) const {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad() || parameter.grad().defined() || !is_dtensor(parameter)) continue;
    if (!DTensor(parameter).mesh().is_member()) parameter.mutable_grad() = at::zeros_like(parameter);
  }
}

std::vector<std::vector<TimedAction>> Pipeline::gather_actions(const std::vector<TimedAction>& own) const {
  const Impl& p = impl();
  if (!p.mesh.is_member()) return {};
  const LocalNoGradGuard scope;
  const auto& ranks = p.schedule.ranks;
  const std::size_t here = ranks[static_cast<std::size_t>(p.rank)].size();
  const std::string others =
      c10::str("gather_actions: expected the ", here, " actions of a step of this pipeline, got ", own.size());
  raise_everywhere(own.size() == here ? "" : others, p.mesh.communicator());
  std::size_t most = 0;
  for (const auto& actions : ranks) most = std::max(most, actions.size());
  const at::Tensor mine = at::zeros({static_cast<std::int64_t>(most), 2}, at::kDouble);
  double* to = mine.mutable_data_ptr<double>();
  for (const TimedAction& action : own) *to++ = action.begin, *to++ = action.end;
  const at::Tensor all = mine.new_empty({p.line.size(), mine.size(0), 2});
  p.line.all_gather(all.unbind(), mine).wait();
  std::vector<std::vector<TimedAction>> result(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double* times = all.const_data_ptr<double>() + 2 * most * r;
    for (const Action& action : ranks[r]) result[r].push_back({action, times[0], times[1]}), times += 2;
  }
  return result;
}

}  // namespace dtensor::pipeline
