// The plan: where each tensor lives on a mesh (replicate, shard, tp).
#include "plan.h"

#include <array>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/parallelize.h"
#include "dtensor/tensor.h"

namespace train {

using dtensor::Placement;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using dtensor::StridedShard;

dtensor::DeviceMesh make_mesh(const dtensor::Communicator& world, const MeshShape& shape) {
  return dtensor::init_device_mesh(world, c10::kCPU, {shape.replicate, shape.shard, shape.tp},
                                   {"replicate", "shard", "tp"});
}

namespace {

struct TpRule {
  const char* pattern;  // part of a parameter's name
  int dim;
};

// Weights are [out, in]. Column-parallel layers split what they put out, row-parallel ones what they take in, so that a
// pair of them (q/k/v and o, ffn1 and ffn2) needs one reduction. The embedding is split by word, the head by class.
constexpr std::array<TpRule, 8> kTpPlan = {{
    {"wte", 0},
    {"q_proj", 0},
    {"k_proj", 0},
    {"v_proj", 0},
    {"o_proj", 1},
    {"ffn1", 0},
    {"ffn2", 1},
    {"lm_head", 0},
}};

Placement tp_placement(const std::string& name) {
  for (const TpRule& rule : kTpPlan) {
    if (name.find(rule.pattern) != std::string::npos) return Shard(rule.dim);
  }
  return Replicate();  // layer norms
}

}  // namespace

Placements parameter_placements(const std::string& name, const MeshShape& shape) {
  const Placement tp = tp_placement(name);
  // tp splits first, though its axis is to the right: each of its pieces is then what `shard` splits.
  const bool both_on_rows = tp.is_shard(0) && shape.tp > 1;
  const Placement shard = both_on_rows ? StridedShard(0, shape.tp) : Shard(0);
  return {Replicate(), shard.as_storage(), tp};
}

std::vector<dtensor::FsdpUnit> make_units(Parameters& parameters, const GptConfig& config,
                                          const dtensor::DeviceMesh& mesh, const Options& options) {
  dtensor::FsdpOptions how;
  if (options.reshard == "true" || options.reshard == "false") {
    how.reshard_after_forward = options.reshard == "true";
  } else {
    how.reshard_after_forward = std::int64_t{std::stol(options.reshard)};
  }
  if (options.bf16) {
    how.precision.param_dtype = at::kBFloat16;
    how.precision.param_dtype_of = {{"*ln*", at::kFloat}};  // layer norms
    how.precision.output_dtype = at::kFloat;
  }
  std::vector<dtensor::FsdpUnit> units;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    units.push_back(fully_shard(parameters.slots("h." + std::to_string(layer) + "."), mesh, how));
  }
  units.push_back(fully_shard(parameters.slots(), mesh, how));
  return units;
}

Placements batch_placements() { return {Shard(0), Shard(0), Replicate()}; }

LogitsHook gather_classes() {
  return
      [](const at::Tensor& logits) -> at::Tensor { return dtensor::DTensor(logits).redistribute(batch_placements()); };
}

ModelHooks model_hooks(bool sequence_parallel, bool checkpoint_activations) {
  ModelHooks hooks;
  if (sequence_parallel) {
    hooks.at_point = [](const std::string& point, const at::Tensor& x) {
      return dtensor::constrain(x, "tp", point.ends_with(".in") ? Replicate() : Shard(1));
    };
  }
  if (checkpoint_activations) {
    hooks.run_block = [](const ModelHooks::Block& block, const at::Tensor& x) { return dtensor::checkpoint(block, x); };
  }
  return hooks;
}

}  // namespace train
