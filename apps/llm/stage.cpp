#include "stage.h"

#include <ATen/ATen.h>

#include <optional>
#include <unordered_set>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/hooks.h"
#include "dtensor/moe.h"
#include "dtensor/nn/float8.h"
#include "dtensor/parallelize.h"

namespace llm {

using namespace dtensor;

NamedTensors distinct(const NamedTensors& tensors) {
  NamedTensors each;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors) {
    if (seen.insert(item.second->unsafeGetTensorImpl()).second) each.push_back(item);
  }
  return each;
}

Stage::Stage(nn::Decoder& decoder, const Part& part) : decoder_(decoder), part_(part) {
  for (const auto& [name, layer] : decoder.children()) {
    if (contains(name)) register_module(name, *layer);
  }
}

bool Stage::contains(const std::string& layer) const {
  constexpr std::string_view kBlock = "layers.";
  if (layer.starts_with(kBlock)) {
    const auto i = std::stoll(layer.substr(kBlock.size()));
    return part_.begin <= i && i < part_.end;
  }
  return layer == "norm" || layer == "lm_head" ? part_.last : part_.first;
}

// The decoder's plan for the layers of this stage, with activations between blocks split along the sequence, and
// logits by class.
ParallelPlan Stage::parallel_plan() const {
  const auto& config = decoder_.config();
  ParallelPlan plan;
  for (auto& [pattern, style] : tensor_parallel_plan(config, /*gather_logits=*/false)) {
    if ((pattern == "embed" && !part_.first) || (pattern == "lm_head" && !part_.last)) continue;
    if (auto* row = std::get_if<RowwiseParallel>(&style)) row->out = Shard(1);
    if (auto* column = std::get_if<ColwiseParallel>(&style); column != nullptr && pattern == "lm_head") {
      column->in = Replicate();
    }
    plan.emplace_back(pattern, style);
  }
  const auto begin = config.layer.begin() + part_.begin, end = config.layer.begin() + part_.end;
  const bool dense = std::any_of(begin, end, [](const auto& layer) { return !layer.experts; });
  plan.emplace_back("layers.*.attn", PrepareModuleInput{Replicate()});
  if (dense) plan.emplace_back("layers.*.mlp", PrepareModuleInput{Replicate()});
  return plan;
}

void Stage::distribute(const DeviceMesh& mesh, const ParallelLayout& layout) {
  layout_ = layout;
  if (!moe_layers(*this).empty() && mesh.size() > 1) {
    apply_expert_parallel(*this, mesh.view({mesh.size() / layout.ep, layout.ep}, {"edp", "ep"}));
  }
  parallelize(*this, mesh, parallel_plan());
  FsdpOptions options;
  options.shard_axes = {"shard", "cp"};
  options.reshard_after_forward = layout.reshard;
  options.cpu_offload = layout.offload;
  if (layout.bf16) {
    options.precision.param_dtype = at::kBFloat16;
    options.precision.param_dtype_of = {{"*gate*.router*", at::kFloat}};
  }
  for (auto i = part_.begin; i < part_.end; ++i) {
    fully_shard(*decoder_.blocks()[static_cast<std::size_t>(i)], mesh, options);
  }
  fully_shard(*this, mesh, options);
  units_ = units_of(parameters());
}

Placements Stage::placements(bool activations) {
  return {Shard(0), Shard(0), ZigzagShard(1), activations ? Placement(Shard(1)) : Placement(Replicate())};
}

Stage::Output Stage::run_block(const nn::DecoderBlock& block, const at::Tensor& x, const nn::DecoderPass& pass) const {
  std::optional<nn::Float8Scope> float8;
  if (layout_.float8) float8.emplace();
  if (layout_.recompute == Recomputation::none) {
    const auto out = block(x, pass);
    return {out.y, out.loss};
  }
  RecomputeOptions options;
  if (layout_.recompute == Recomputation::selective) {
    options.keep = {"aten::mm", "aten::linear", "aten::_scaled_mm",
                    "aten::_scaled_dot_product_flash_attention_for_cpu"};
  }
  using Tensors = std::vector<at::Tensor>;
  const auto run = [&block, pass](const Tensors& inputs) {
    const auto out = block(inputs[0], pass);
    return out.loss.defined() ? Tensors{out.y, out.loss} : Tensors{out.y};
  };
  const auto results = checkpoint(run, Tensors{x}, options);
  return {results[0], results.size() > 1 ? results[1] : at::Tensor()};
}

Stage::Output Stage::forward(const at::Tensor& input) const {
  Output result{part_.first ? decoder_.embed(input) : input, {}};
  const auto pass = decoder_.pass(input.size(1), result.y.options());
  for (auto i = part_.begin; i < part_.end; ++i) {
    const auto out = run_block(*decoder_.blocks()[static_cast<std::size_t>(i)], result.y, pass);
    result.y = out.y;
    if (out.loss.defined()) result.loss = result.loss.defined() ? result.loss + out.loss : out.loss;
  }
  if (part_.last) result.y = decoder_.head(decoder_.norm(result.y));
  return result;
}

void Stage::backward(const at::Tensor& output, const at::Tensor& gradient, bool last_microbatch) {
  for (const auto& unit : units_) unit.set_reshard_after_backward(last_microbatch || layout_.reshard);
  std::optional<NoGradientSync> unsharded;
  std::optional<NoReplicaSync> sharded;  // sums over replicas wait, since they need no memory
  const bool shards = layout_.pp == 1 && layout_.accumulate_sharded;
  if (!last_microbatch && !shards) unsharded.emplace();
  if (!last_microbatch && shards) sharded.emplace();
  output.backward(gradient);
}

}  // namespace llm
