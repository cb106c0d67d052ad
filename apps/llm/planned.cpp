#include "planned.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "train/model/loss.h"
#include "train/model/model.h"
#include "usage_error.h"

namespace llm {

using namespace dtensor;

namespace {

DeviceMesh mesh_of(const ParallelLayout& l, const Communicator& world, c10::DeviceType device) {
  if (l.pp == 1) {
    return init_device_mesh(world, device, {l.replicate, l.shard, l.cp, l.tp}, {"replicate", "shard", "cp", "tp"});
  }
  return init_device_mesh(world, device, {l.pp, l.replicate, l.shard, l.cp, l.tp},
                          {"pp", "replicate", "shard", "cp", "tp"});
}

at::Tensor with_router_losses(const at::Tensor& loss, const at::Tensor& of_routers) {
  return of_routers.defined() ? loss + of_routers : loss;
}

// Outputs of a stage, and inputs of the next one: activations or logits, and the sum of the routers' losses so far.
pipeline::StageFunction function_of(const Stage& stage) {
  return [&stage](const pipeline::Tensors& inputs) -> pipeline::Tensors {
    const auto out = stage(inputs[0]);
    const at::Tensor before = inputs.size() > 1 ? inputs[1] : at::Tensor();
    if (!before.defined() && !out.loss.defined()) return {out.y};
    return {out.y, before.defined() ? with_router_losses(before, out.loss) : out.loss};
  };
}

at::Tensor loss_of_outputs(const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
  return with_router_losses(train::token_loss(outputs[0], targets[0]), outputs.size() > 1 ? outputs[1] : at::Tensor());
}

std::unique_ptr<pipeline::Pipeline> pipeline_of(const DeviceMesh& mesh, const nn::DecoderConfig& config,
                                                const ParallelLayout& l) {
  if (l.pp == 1) return nullptr;
  auto schedule = pipeline::make_schedule(l.schedule, static_cast<int>(l.pp), static_cast<int>(l.microbatches),
                                          static_cast<int>(l.chunks));
  if (schedule.stages() > config.layers) {
    throw UsageError(fmt::format("--plan: the layout {} has {} stages, but the model has {} layers", l.str(),
                                 schedule.stages(), config.layers));
  }
  if (config.tied) throw UsageError("--plan: stages (pp) do not support a head that is tied to the embedding");
  return std::make_unique<pipeline::Pipeline>(mesh, std::move(schedule), loss_of_outputs);
}

}  // namespace

PlannedDecoder::PlannedDecoder(nn::Decoder& decoder, const ParallelLayout& layout, const Communicator& world,
                               c10::DeviceType device)
    : decoder_(decoder),
      layout_(layout),
      mesh_(mesh_of(layout, world, device)),
      pipeline_(pipeline_of(mesh_, decoder.config(), layout)) {
  const int last = pipeline_ ? pipeline_->last_stage() : 0;
  const auto block = [&](int stage) { return stage * decoder.config().layers / (last + 1); };
  for (int i = 0; i <= last; ++i) {
    stages_.push_back(std::make_unique<Stage>(decoder, Stage::Part{block(i), block(i + 1), i == 0, i == last}));
    stages_.back()->distribute(pipeline_ ? pipeline_->stage_mesh(i) : mesh_, layout);
  }
  if (!pipeline_) return;
  for (const int i : pipeline_->stages()) {
    auto& stage = *stages_[static_cast<std::size_t>(i)];
    pipeline_->set_stage(i, function_of(stage), stage.parameters());
  }
}

at::Tensor PlannedDecoder::loss(const train::Batch& batch) {
  const auto place = [&](const at::Tensor& full) { return train::place_batch(full, mesh_, Stage::placements()); };
  const auto out = (*stages_[0])(place(batch.ids));
  return with_router_losses(train::token_loss(out.y, place(batch.targets)), out.loss);
}

at::Tensor PlannedDecoder::step_of_stages(const train::Batch& batch) {
  const auto placed = [&](const at::Tensor& full) {
    std::vector<pipeline::Tensors> all;
    for (const auto& part : pipeline::microbatches(full, static_cast<int>(layout_.microbatches))) {
      all.push_back({train::place_batch(part, pipeline_->stage_mesh(), Stage::placements())});
    }
    return all;
  };
  const auto result = pipeline_->step(placed(batch.ids), placed(batch.targets));
  pipeline_->set_placeholder_gradients(decoder_.parameters());
  return train::value_of(result.loss);
}

at::Tensor PlannedDecoder::step(const train::Batch& batch) {
  if (pipeline_) return step_of_stages(batch);
  const auto count = layout_.microbatches, rows = batch.ids.size(0) / count;
  at::Tensor sum;
  for (std::int64_t m = 0; m < count; ++m) {
    const at::Tensor mean = loss(batch.narrow(m * rows, rows)) / static_cast<double>(count);
    stages_[0]->backward(mean, {}, m + 1 == count);
    const at::Tensor value = train::value_of(mean);
    sum = sum.defined() ? sum + value : value;
  }
  return sum;
}

}  // namespace llm
