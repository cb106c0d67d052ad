// Training steps.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "llm/commands/train.h"
#include "llm/usage_error.h"
#include "train/model/loss.h"
#include "train/model/model.h"
#include "train/step.h"

namespace llm {
namespace {

dtensor::NamedTensors trained_parameters(dtensor::nn::Decoder& decoder) {
  auto trained = distinct(decoder.named_parameters());
  std::erase_if(trained, [](const auto& item) { return !item.second->requires_grad(); });
  return trained;
}

}  // namespace

dtensor::LearningRate learning_rate(const TrainOptions& o) {
  const std::int64_t steps = std::max<std::int64_t>(1, o.steps - o.warmup);
  const auto rate = [&] {
    if (o.schedule == "linear") return dtensor::LearningRate::linear(o.lr, steps);
    if (o.schedule == "cosine") return dtensor::LearningRate::cosine(o.lr, steps);
    if (o.schedule == "wsd") return dtensor::LearningRate::wsd(o.lr, steps, std::max<std::int64_t>(1, steps / 10));
    return dtensor::LearningRate::constant(o.lr);
  };
  return rate().after_warmup(o.warmup);
}

dtensor::nn::LoraOptions lora_options(const TrainOptions& o, const dtensor::nn::DecoderConfig& config) {
  const double alpha = o.lora_alpha > 0 ? o.lora_alpha : 2 * static_cast<double>(o.lora_rank);
  std::vector<std::string> targets = o.lora_targets;
  if (targets.empty() && !config.latent) targets = {"q_proj", "v_proj"};
  if (targets.empty()) targets = {config.latent->q_rank > 0 ? "q_b_proj" : "q_proj", "kv_b_proj"};
  const bool head = std::find(targets.begin(), targets.end(), "lm_head") != targets.end();
  if (o.lora_rank > 0 && head && config.tied) {  // Merging would change the embedding as well.
    throw UsageError(
        "--lora-targets: lm_head cannot have adapters, since it is tied to the embedding (tie_word_embeddings)");
  }
  return {.rank = o.lora_rank, .alpha = alpha, .targets = std::move(targets)};
}

void check_lora_targets(const TrainOptions& o, const dtensor::nn::DecoderConfig& given) {
  if (o.lora_rank == 0 || o.lora_targets.empty()) return;
  auto config = given;
  config.tensor = at::TensorOptions(at::kMeta);
  dtensor::nn::Decoder decoder(config);
  std::set<std::string> known;
  for (const auto& [path, module] : decoder.named_modules()) {
    if (dynamic_cast<dtensor::nn::Linear*>(module) != nullptr) known.insert(module->name());
  }
  for (const std::string& target : o.lora_targets) {
    if (known.contains(target)) continue;
    throw UsageError(
        fmt::format("--lora-targets: the model has no projection {}, only {}", target, fmt::join(known, ", ")));
  }
}

Trainer::Trainer(const Model& model, const TrainOptions& options)
    : model_(model),
      trained_(trained_parameters(*model.decoder)),
      optimizer_(trained_, {.name = options.optimizer,
                            .rate = learning_rate(options),
                            .weight_decay = options.weight_decay,
                            .beta2 = 0.999,
                            .clip = options.clip,
                            .muon_experts = true}) {}

at::Tensor Trainer::mean_loss(const train::Batch& batch) const {
  if (model_.planned) return model_.planned->loss(batch);
  const bool split = static_cast<bool>(model_.mesh);
  std::vector<at::Tensor> router_losses;
  const at::Tensor logits = (*model_.decoder)(model_.place(batch.ids, split), nullptr, &router_losses);
  at::Tensor loss = train::token_loss(logits, model_.place(batch.targets, split));
  if (!router_losses.empty()) loss = loss + at::stack(router_losses).sum();
  return loss;
}

train::StepRecord Trainer::step(const train::Batch& batch) {
  const auto same_bits = model_.bit_identical_scope();
  const auto pass = [&] {
    if (model_.planned) return model_.planned->step(batch);
    const at::Tensor loss = mean_loss(batch);
    loss.backward();
    return train::value_of(loss);
  };
  return train::run_step(optimizer_, batch.ids.numel(),
                         {.run = [&](auto&) { return pass(); }, .repeat = [&] { pass(); }},
                         model_.mesh ? model_.mesh.world() : dtensor::Communicator());
}

double Trainer::loss(const train::Batch& batch) const {
  const at::NoGradGuard no_grad;
  const auto same_bits = model_.bit_identical_scope();
  return train::value_of(mean_loss(batch)).item<double>();
}

void Trainer::add_to(dtensor::Checkpoint& checkpoint) {
  checkpoint.add("model", trained_).add("optimizer", optimizer_.rule());
}

double evaluate(const Trainer& trainer, const std::vector<std::int32_t>& tokens, const TrainOptions& o) {
  const std::int64_t count = (static_cast<std::int64_t>(tokens.size()) - 1) / o.seq;
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += o.batch) {
    const std::int64_t rows = std::min(o.batch, count - first);
    at::Tensor all = at::empty({rows, o.seq + 1}, at::kLong);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto begin = tokens.begin() + (first + r) * o.seq;
      std::copy(begin, begin + o.seq + 1, all.mutable_data_ptr<std::int64_t>() + r * (o.seq + 1));
    }
    const train::Batch batch{all.narrow(1, 0, o.seq).contiguous(), all.narrow(1, 1, o.seq).contiguous()};
    sum += trainer.loss(batch) * static_cast<double>(rows);
  }
  return sum / static_cast<double>(count);
}

}  // namespace llm
