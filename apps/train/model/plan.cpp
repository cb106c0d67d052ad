// The plan: placements of all tensors on a mesh (replicate, shard, cp, tp).
#include "train/model/plan.h"

#include "device_flag.h"
#include "dtensor/moe.h"

namespace train {

using dtensor::Replicate;
using dtensor::Shard;

c10::DeviceType device_type(const Options& options) { return device_flag::type_of(options.device); }

dtensor::DeviceMesh make_mesh(const dtensor::Communicator& world, const MeshShape& shape, c10::DeviceType device,
                              int shift) {
  std::vector<std::int64_t> ranks;
  const auto count = shape.stage_size();
  for (std::int64_t place = 0; place < count; ++place) ranks.push_back((place + count - shift) % count);
  return dtensor::device_mesh(world, device, ranks, {shape.replicate, shape.shard, shape.cp, shape.tp},
                              {"replicate", "shard", "cp", "tp"});
}

// The plan of the decoder. Experts are split over another mesh and accept tokens in any placements. Activations are not
// constrained without --sequence-parallel: a Partial that several layers read is reduced once.
dtensor::ParallelPlan tensor_parallel_plan(const GptConfig& config, const Options& options) {
  auto plan = dtensor::nn::tensor_parallel_plan(config, /*gather_logits=*/!options.loss_parallel);
  if (config.experts) std::erase_if(plan, [](const auto& entry) { return entry.first.starts_with("layers.*.mlp."); });
  return options.sequence_parallel ? with_sequence_parallelism(std::move(plan), !config.experts) : plan;
}

namespace {

// Shards those of the DTensors that are on `mesh` over shard and cp for storage; each is gathered where it is used.
void shard_storage(const dtensor::NamedTensors& parameters, const dtensor::DeviceMesh& mesh) {
  for (const auto& [name, slot] : parameters) {
    dtensor::DTensor parameter(*slot);
    if (!(parameter.mesh() == mesh)) continue;
    dtensor::Placements placements = parameter.placements();
    // tp splits first, although its axis is to the right; `shard` and `cp` split each of its shards.
    const auto tp = mesh.size("tp");
    const bool both_on_rows = placements[mesh.dim("tp")].is_shard(0) && tp > 1;
    const auto split = (both_on_rows ? dtensor::StridedShard(0, tp) : Shard(0)).as_storage();
    placements[mesh.dim("shard")] = split;
    if (mesh.size("cp") > 1) placements[mesh.dim("cp")] = split;
    parameter.redistribute_(std::move(placements));
  }
}

dtensor::FsdpOptions fsdp_options(const Options& options) {
  dtensor::FsdpOptions how;
  how.shard_axes = {"shard", "cp"};  // Ranks of cp have different tokens, as those of shard do.
  if (options.reshard == "true" || options.reshard == "false") {
    how.reshard_after_forward = options.reshard == "true";
  } else {
    how.reshard_after_forward = std::int64_t{std::stoll(options.reshard)};
  }
  if (options.bf16) {
    how.precision.param_dtype = at::kBFloat16;
    how.precision.param_dtype_of = {{"*norm*", at::kFloat}, {"*gate*", at::kFloat}};  // Norms and routers.
    if (!options.fused_loss) how.precision.output_dtype = at::kFloat;
  }
  return how;
}

// Distributes experts on their sparse view of the ranks. Does nothing without experts, or if one rank has all.
void distribute_experts(dtensor::nn::Module& model, const dtensor::DeviceMesh& mesh, const Options& options) {
  if (!options.experts || mesh.size() == 1) return;
  const auto shape =
      fit_sparse(*options.experts, {mesh.size("replicate"), mesh.size("shard"), mesh.size("tp"), 1, mesh.size("cp")});
  const auto sparse = mesh.view({shape.edp, shape.ep, shape.etp}, {"edp", "ep", "etp"});
  dtensor::apply_expert_parallel(model, sparse);
}

// Experts, which are on another mesh, become a unit in addition to that of the block.
void shard_block(dtensor::nn::Module& block, const dtensor::DeviceMesh& mesh, const dtensor::FsdpOptions& how,
                 std::vector<dtensor::FsdpUnit>& units) {
  fully_shard(block, mesh, how);
  for (auto& unit : dtensor::units_of(block.parameters())) units.push_back(std::move(unit));
}

// The entries of a plan that match the child of that name ("layers.3" matches "layers.*"), relative to the child.
dtensor::ParallelPlan part_of_plan(const dtensor::ParallelPlan& plan, const std::string& child) {
  const auto number = child.rfind('.');  // "layers.3", "further_heads.0".
  const std::string name = number == std::string::npos ? child : child.substr(0, number) + ".*";
  dtensor::ParallelPlan part;
  for (const auto& [pattern, style] : plan) {
    if (pattern == name) part.emplace_back("", style);
    if (pattern.starts_with(name + ".")) part.emplace_back(pattern.substr(name.size() + 1), style);
  }
  return part;
}

}  // namespace

// Experts first, so that each rank creates its own only; then the other parameters, with units of both in one schedule.
std::vector<dtensor::FsdpUnit> distribute(Gpt& model, const dtensor::DeviceMesh& mesh, const Options& options) {
  distribute_experts(model, mesh, options);
  parallelize(model, mesh, tensor_parallel_plan(model.config(), options));
  if (options.parallel != "fsdp") {
    shard_storage(model.named_parameters(), mesh);
    return {};
  }
  const auto how = fsdp_options(options);
  std::vector<dtensor::FsdpUnit> units;
  for (const auto& block : model.blocks()) shard_block(*block, mesh, how, units);
  units.push_back(fully_shard(model, mesh, how));
  return units;
}

std::vector<std::vector<dtensor::FsdpUnit>> distribute(const Stages& stages, const Options& options) {
  const auto plan = tensor_parallel_plan(stages.model().config(), options);
  const auto how = fsdp_options(options);
  std::vector<std::vector<dtensor::FsdpUnit>> all;
  for (int stage = 0; stage < stages.count(); ++stage) {
    auto& units = all.emplace_back();
    dtensor::NamedTensors full;
    dtensor::DeviceMesh mesh;
    for (const Stages::Part& part : stages.parts()) {
      if (part.stage != stage) continue;
      mesh = part.mesh;
      const bool block = part.name.starts_with("layers.");
      if (block) distribute_experts(*part.module, mesh, options);
      parallelize(*part.module, mesh, part_of_plan(plan, part.name));
      if (block) shard_block(*part.module, mesh, how, units);
      for (auto& item : part.module->named_parameters(part.name)) full.push_back(std::move(item));
    }
    if (!full.empty())
      units.push_back(fully_shard(full, mesh, how));  // The other parameters; joins all units to one schedule.
  }
  return all;
}

dtensor::Placements batch_placements(const Options& options) {
  return {Shard(0), Shard(0), options.zigzag_sequence ? dtensor::ZigzagShard(1) : Shard(1), Replicate()};
}

dtensor::Placements rows_placements() { return {Shard(0), Shard(0), Replicate(), Replicate()}; }

}  // namespace train
