#include "stage.h"

#include <ATen/ATen.h>

#include <optional>
#include <unordered_set>

#include "dtensor/hooks.h"
#include "dtensor/moe.h"
#include "dtensor/parallelize.h"
#include "train/model/block_run.h"

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
  return layer == "embed" || layer == "positions" ? part_.first : part_.last;
}

// The decoder's plan for the layers of this stage, with activations between blocks split along the sequence, and
// logits by class.
ParallelPlan Stage::parallel_plan() const {
  const auto& config = decoder_.config();
  const auto begin = config.layer.begin() + part_.begin, end = config.layer.begin() + part_.end;
  const bool dense = std::any_of(begin, end, [](const auto& layer) { return !layer.experts; });
  auto plan = train::with_sequence_parallelism(tensor_parallel_plan(config, /*gather_logits=*/false), dense);
  std::erase_if(plan, [&](const auto& entry) { return !entry.first.starts_with("layers.") && !contains(entry.first); });
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

Stage::Output Stage::forward(const at::Tensor& input) const {
  Output result{part_.first ? decoder_.embed(input) : input, {}};
  const auto pass = decoder_.pass(input.size(1), result.y.options());
  for (auto i = part_.begin; i < part_.end; ++i) {
    const auto out = train::run_block(*decoder_.blocks()[static_cast<std::size_t>(i)], result.y, pass,
                                      {layout_.recompute, layout_.float8});
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
