#include "stage_model.h"

#include <ATen/ATen.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/fully_shard.h"
#include "dtensor/moe.h"
#include "dtensor/parallelize.h"

namespace plan {

using namespace dtensor;

// Blocks are taken from the end of the model: in models whose first layers are dense, most layers have experts.
StageModel::StageModel(const nn::DecoderConfig& config, const Part& part) : config_(config.checked()), part_(part) {
  config_.layers = part.blocks;
  const auto kept = std::min<std::ptrdiff_t>(part.blocks, static_cast<std::ptrdiff_t>(config_.layer.size()));
  config_.layer.erase(config_.layer.begin(), config_.layer.end() - kept);
  config_.tensor = at::TensorOptions(at::kFloat).device(at::kMeta);
  if (config_.experts) {  // A dry run knows no scores: tokens go to the experts in turn.
    config_.experts->router.choice = RouterChoice::round_robin;
    config_.experts->router.groups = config_.experts->router.top_groups = 1;
    config_.experts->balance_rate = 0;
  }
  for (const auto& rope : config_.ropes) ropes_.emplace_back(rope);
  if (part.first) {
    embed_ = std::make_unique<nn::Embedding>(config_.vocabulary, config_.hidden, -1, config_.tensor);
    register_module("embed", *embed_);
  }
  for (std::int64_t i = 0; i < part.blocks; ++i) {
    blocks_.push_back(std::make_unique<nn::DecoderBlock>(config_, i));
    register_module("layers." + std::to_string(i), *blocks_.back());
  }
  if (!part.last) return;
  norm_ = std::make_unique<nn::Norm>(config_.hidden, config_.norm, config_.norm_eps, config_.tensor);
  lm_head_ = std::make_unique<nn::Projection>(config_.hidden, config_.vocabulary, false, config_.tensor);
  register_module("norm", *norm_);
  register_module("lm_head", *lm_head_);
}

// The decoder's plan for the modules of this stage, with activations between blocks split along the sequence, and the
// loss of logits that are split by class.
ParallelPlan StageModel::parallel_plan() const {
  ParallelPlan plan;
  for (auto& [pattern, style] : tensor_parallel_plan(config_, /*gather_logits=*/false)) {
    if (pattern == "embed" && !part_.first) continue;
    if (pattern == "lm_head" && !part_.last) continue;
    if (auto* row = std::get_if<RowwiseParallel>(&style)) row->out = Shard(1);
    if (auto* column = std::get_if<ColwiseParallel>(&style); column != nullptr && pattern == "lm_head") {
      column->in = Replicate();
    }
    plan.emplace_back(pattern, style);
  }
  const bool dense = std::any_of(config_.layer.begin(), config_.layer.end(), [](const auto& l) { return !l.experts; });
  plan.emplace_back("layers.*.attn", PrepareModuleInput{Replicate()});
  if (dense) plan.emplace_back("layers.*.mlp", PrepareModuleInput{Replicate()});
  return plan;
}

void StageModel::distribute(const DeviceMesh& mesh, const ParallelLayout& layout) {
  const bool experts = std::any_of(config_.layer.begin(), config_.layer.end(), [](const auto& l) { return l.experts; });
  if (experts && mesh.size() > 1) {
    apply_expert_parallel(*this, mesh.view({mesh.size() / layout.ep, layout.ep}, {"edp", "ep"}));
  }
  parallelize(*this, mesh, parallel_plan());
  FsdpOptions options;
  options.shard_axes = {"shard", "cp"};
  options.reshard_after_forward = layout.reshard;
  if (layout.bf16) {
    options.precision.param_dtype = at::kBFloat16;
    options.precision.param_dtype_of = {{"*gate*.router*", at::kFloat}};
  }
  for (const auto& block : blocks_) fully_shard(*block, mesh, options);
  fully_shard(*this, mesh, options);
}

at::Tensor StageModel::run_block(std::size_t i, const at::Tensor& x, const nn::DecoderPass& pass,
                                 Recomputation recompute) const {
  const auto run = [&block = *blocks_[i], pass](const at::Tensor& in) { return block(in, pass).y; };
  if (recompute == Recomputation::none) return run(x);
  CheckpointOptions options;
  if (recompute == Recomputation::selective) {
    options.keep = {"aten::mm", "aten::linear", "aten::_scaled_dot_product_flash_attention_for_cpu"};
  }
  return checkpoint(run, x, options);
}

at::Tensor StageModel::forward(const at::Tensor& input, const at::Tensor& targets, Recomputation recompute) const {
  at::Tensor x = embed_ ? (*embed_)(input) : input;
  nn::DecoderPass pass;
  for (const auto& rope : ropes_) pass.angles.push_back(rope.angles(0, input.size(1), x.options()));
  for (std::size_t i = 0; i < blocks_.size(); ++i) x = run_block(i, x, pass, recompute);
  if (!part_.last) return x;
  const at::Tensor logits = (*lm_head_)((*norm_)(x));
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten());
}

}  // namespace plan
