// Stages of the model and its microbatches.
#include "train/model/stages.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "dtensor/fully_shard.h"
#include "input_file.h"
#include "train/model/plan.h"

namespace train {

namespace pipeline = dtensor::pipeline;

dtensor::DeviceMesh make_pipeline_mesh(const dtensor::Communicator& world, const MeshShape& shape,
                                       c10::DeviceType device) {
  return dtensor::init_device_mesh(world, device, {shape.pp, shape.replicate, shape.shard, shape.cp, shape.tp},
                                   {"pp", "replicate", "shard", "cp", "tp"});
}

pipeline::Schedule schedule_of(const Options& options, int ranks) {
  const auto& names = pipeline::schedule_names();
  try {
    if (std::find(names.begin(), names.end(), options.schedule) != names.end()) {
      return pipeline::make_schedule(options.schedule, ranks, options.microbatches, options.chunks);
    }
    const auto file =
        input_file::open<UsageError>("--schedule: expected the name of a schedule or a file", options.schedule);
    std::ostringstream text;
    text << file.rdbuf();
    auto schedule = pipeline::Schedule::parse(text.str());
    pipeline::check(schedule);
    const bool chunks_fit = options.chunks == 0 || schedule.stages() == ranks * options.chunks;
    if (static_cast<int>(schedule.ranks.size()) == ranks && schedule.microbatches() == options.microbatches &&
        chunks_fit)
      return schedule;
    if (!chunks_fit) {
      throw UsageError(fmt::format("--schedule {} has {} stages; --chunks {} does not match on {} ranks",
                                   options.schedule, schedule.stages(), options.chunks, ranks));
    }
    throw UsageError(fmt::format("--schedule {} is for {} ranks and {} microbatches, got {} and {}", options.schedule,
                                 schedule.ranks.size(), schedule.microbatches(), ranks, options.microbatches));
  } catch (const c10::Error& error) {
    throw UsageError("--schedule: " + std::string(error.what_without_backtrace()));
  }
}

namespace {

std::vector<int> stages_of(const Gpt& model, const pipeline::Schedule& schedule) {
  std::vector<double> costs;
  for (const pipeline::Layer& layer : model.layers()) costs.push_back(layer.cost);
  if (schedule.stages() > static_cast<int>(costs.size())) {
    throw UsageError(fmt::format("--schedule: expected at most {} stages (the model's layers), got {}", costs.size(),
                                 schedule.stages()));
  }
  return pipeline::balanced_stages(costs, schedule.stages());
}

}  // namespace

Stages::Stages(Gpt& model, const dtensor::DeviceMesh& mesh, const Options& options)
    : model_(model),
      options_(options),
      pipeline_(make_pipeline(mesh)),
      stage_of_(stages_of(model, pipeline_.schedule())) {
  const auto& children = model.children();  // embed, blocks, then norm and the heads, which are one layer.
  for (std::size_t i = 0; i < children.size(); ++i) {
    const int stage = stage_of_[std::min(i, stage_of_.size() - 1)];
    parts_.push_back({children[i].first, children[i].second, pipeline_.stage_mesh(stage), stage});
  }
}

// Outputs of the last stage: operands of the loss, then the router losses.
pipeline::Pipeline Stages::make_pipeline(const dtensor::DeviceMesh& mesh) {
  const auto contribution = [this](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
    const auto routers = outputs.begin() + model_.loss_operands();
    return loss_->add({outputs.begin(), routers}, {routers, outputs.end()}, targets[0]);
  };
  return {mesh, schedule_of(options_, static_cast<int>(mesh.size("pp"))), contribution, {.weight = {}}};
}

void Stages::set() {
  for (const int stage : pipeline_.stages()) {
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : parameters_of(stage)) parameters.push_back(*tensor);
    pipeline_.set_stage(stage, stage_function(stage), std::move(parameters));
  }
}

dtensor::NamedTensors Stages::parameters_of(int stage) const {
  dtensor::NamedTensors own;
  for (const Part& part : parts_) {
    if (part.stage != stage) continue;
    for (auto& item : part.module->named_parameters(part.name)) own.push_back(std::move(item));
  }
  return own;
}

// Computes in the dtypes that the parameters of the stage have in their units.
pipeline::StageFunction Stages::stage_function(int stage) const {
  const auto run = pipeline::stage_of_layers(model_.layers(), stage_of_, stage);
  return [this, run, stage](const pipeline::Tensors& inputs) {
    const dtensor::ComputeScope scope(parameters_of(stage));
    pipeline::Tensors outputs = run(inputs);
    for (const Part& part : parts_) {
      if (on_forward_ && part.stage == stage) on_forward_(*part.module);
    }
    const bool gives_logits = stage == pipeline_.last_stage() && !options_.fused_loss;
    const auto heads = gives_logits ? options_.predict_tokens : 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      auto& logits = outputs[static_cast<std::size_t>(h)];
      logits = scope.output(logits);
    }
    return outputs;
  };
}

void Stages::run(const Batch& piece, BatchLoss& loss) {
  const auto mesh = pipeline_.stage_mesh();
  const auto add = [&](std::vector<pipeline::Tensors>& to, const at::Tensor& full_tensor,
                       const dtensor::Placements& where) {
    const auto parts = pipeline::microbatches(full_tensor, options_.microbatches);
    to.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) to[i].push_back(place_batch(parts[i], mesh, where));
  };
  std::vector<pipeline::Tensors> inputs, targets;
  add(inputs, piece.ids, batch_placements(options_));
  if (piece.documents.defined()) add(inputs, piece.documents, rows_placements());
  add(targets, piece.targets, batch_placements(options_));
  loss_ = &loss;
  last_step_ = pipeline_.step(inputs, targets);
  if (actions_.empty()) began_ = last_step_.begin;
  const auto later = std::chrono::duration<double>(last_step_.begin - began_).count();
  for (const auto& [action, begin, end] : last_step_.actions) actions_.push_back({action, begin + later, end + later});
  pipeline_.set_placeholder_gradients(model_.parameters());
  contributions_ = contributions_.defined() ? contributions_ + last_step_.loss : last_step_.loss;
}

std::pair<std::chrono::steady_clock::time_point, Stages::Actions> Stages::take_actions() {
  return {began_, std::exchange(actions_, {})};
}

std::string Stages::diagram() const { return pipeline::schedule_svg(pipeline_.gather_actions(last_step_.actions)); }

void Stages::update_load_balancers() {
  for (const Part& part : parts_) {
    if (part.mesh.is_member()) dtensor::update_load_balancers(*part.module, part.mesh.communicator());
  }
}

void Stages::share_buffers() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor*> buffers;
  std::vector<at::Tensor> given;
  for (const Part& part : parts_) {
    const bool gives = part.mesh.world().rank() == part.mesh.ranks().front();
    for (const auto& [name, buffer] : part.module->named_buffers()) {
      buffers.push_back(buffer);
      given.push_back(gives ? buffer->flatten().to(at::kDouble) : at::zeros({buffer->numel()}, at::kDouble));
    }
  }
  if (buffers.empty()) return;
  const at::Tensor all = at::cat(given);
  parts_[0].mesh.world().all_reduce(all, dtensor::ReduceOp::sum).wait();
  std::int64_t first = 0;
  for (at::Tensor* buffer : buffers) {
    buffer->copy_(all.narrow(0, first, buffer->numel()).view(buffer->sizes()));
    first += buffer->numel();
  }
}

double Stages::on_every_rank(const at::Tensor& number) const {
  const auto& ranks = pipeline_.schedule().ranks;
  if (std::none_of(ranks.begin(), ranks.end(), [](const auto& actions) { return actions.empty(); })) {
    return number.item<double>();
  }
  return broadcast(number.defined() ? number.item<double>() : 0.0, 0);
}

// Contributions are rounded after the division, the sums of a batch in one part are not.
at::Tensor Stages::on_every_rank(const BatchLoss& loss) {
  const at::Tensor contributions = std::exchange(contributions_, {});
  if (!options_.bit_identical) return contributions;
  const at::Tensor mean = loss.mean();
  const double own = mean.defined() ? value_of(mean).item<double>() : 0.0;
  return at::scalar_tensor(broadcast(own, pipeline_.last_stage()), at::kDouble);
}

double Stages::broadcast(double number, int stage) const {
  const auto mesh = pipeline_.stage_mesh(stage);
  const at::Tensor reported = at::full({1}, number, at::kDouble);
  mesh.world().broadcast(reported, static_cast<int>(mesh.ranks().front())).wait();
  return reported.item<double>();
}

}  // namespace train
