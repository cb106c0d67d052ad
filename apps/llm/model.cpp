// A model from a folder: created without memory, distributed, then loaded.
#include "model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <unordered_map>

#include "dtensor/checkpoint.h"
#include "dtensor/fully_shard.h"
#include "dtensor/moe.h"
#include "dtensor/parallelize.h"
#include "train/data/data.h"
#include "train/data/hash.h"

namespace llm {

using dtensor::Placements;

void check_layout(const dtensor::ParallelLayout& l, const dtensor::nn::DecoderConfig& model, std::int64_t batch,
                  std::int64_t sequence, int ranks) {
  const auto check = [](bool holds, const std::string& text) {
    if (!holds) throw UsageError("--plan: " + text);
  };
  check(l.ranks() == ranks, fmt::format("the layout {} has {} ranks, but the program runs on {}; --ranks sets it",
                                        l.str(), l.ranks(), ranks));
  const auto rows = l.replicate * l.shard * l.microbatches, tokens = l.cp * l.tp;
  check(batch % rows == 0,
        fmt::format("expected --batch to be a multiple of replicate x shard x microbatches, {}, got {}", rows, batch));
  check(sequence % tokens == 0,
        fmt::format("expected --seq to be a multiple of cp x tp, {}, got {}", tokens, sequence));
  const auto heads = model.checked().kv_heads, of_stage = l.ranks() / l.pp;
  check(heads % l.tp == 0,
        fmt::format("the layout {} has tp={}, which does not divide the {} heads of keys", l.str(), l.tp, heads));
  const auto experts = model.experts ? model.experts->router.experts : 0;
  check(l.ep == 1 || experts > 0, fmt::format("the layout {} has ep={}, but the model has no experts", l.str(), l.ep));
  check(experts % l.ep == 0,
        fmt::format("the layout {} has ep={}, which does not divide the {} experts", l.str(), l.ep, experts));
  check(of_stage % l.ep == 0,
        fmt::format("the layout {} has ep={}, which does not divide the {} ranks of a stage", l.str(), l.ep, of_stage));
  if (!l.offload) return;
  const bool supported = l.pp == 1 && l.accumulate_sharded && l.optimizer == "adamw" && experts == 0;
  check(supported, fmt::format("\"offload\" needs pp=1, \"accumulate\": \"sharded\", \"optimizer\": \"adamw\" and a "
                               "model without experts, got the layout {}{}",
                               l.str(), experts > 0 ? fmt::format(" and {} experts", experts) : ""));
}

MeshSizes fit_mesh(const std::optional<MeshSizes>& asked, int ranks, const Family& family) {
  MeshSizes sizes = asked.value_or(MeshSizes{});
  if (!asked) sizes.tp = ranks;
  if (sizes.ranks() != ranks) {
    throw UsageError(
        fmt::format("--mesh {} has {} ranks, but the program runs on {}", sizes.str(), sizes.ranks(), ranks));
  }
  const auto& experts = family.config.experts;
  if (sizes.ep > 1 && !experts)
    throw UsageError(fmt::format("--mesh: ep={}, but {} has no experts", sizes.ep, family.name));
  if (experts && experts->router.experts % sizes.ep != 0) {
    throw UsageError(fmt::format("--mesh: ep={} does not divide the {} experts", sizes.ep, experts->router.experts));
  }
  return sizes;
}

namespace {

// Allocates memory for a model on one rank; tied tensors stay tied.
void materialize(dtensor::nn::Module& model, c10::DeviceType device) {
  std::unordered_map<c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> made;
  for (const auto& [name, slot] : model.named_parameters()) {
    const at::Tensor old = *slot;
    auto& entry = made[old.unsafeGetTensorImpl()];
    if (!entry.second.defined()) {
      entry = {old, at::empty(old.sizes(), old.options().device(device)).requires_grad_(old.requires_grad())};
    }
    *slot = entry.second;
  }
}

void place_on_mesh(dtensor::nn::Decoder& decoder, const dtensor::DeviceMesh& mesh, const MeshSizes& sizes) {
  if (decoder.config().experts) {
    apply_expert_parallel(decoder, mesh.view({sizes.ranks() / sizes.ep, sizes.ep}, {"edp", "ep"}));
  }
  parallelize(decoder, mesh, tensor_parallel_plan(decoder.config()));
  if (sizes.shard == 1) return;
  const dtensor::FsdpOptions options{.replicate_axis = "dp"};
  for (const auto& block : decoder.blocks()) fully_shard(*block, mesh, options);
  fully_shard(decoder, mesh, options);
}

}  // namespace

Model make_model(const Family& family, const MeshSizes& sizes, const dtensor::Communicator& world,
                 const ModelOptions& options) {
  auto config = family.config;
  config.tensor = at::TensorOptions(options.dtype).device(at::kMeta);
  config.lora = options.lora;
  Model model{std::make_unique<dtensor::nn::Decoder>(config), {}, options.device};
  for (const auto& [name, slot] : model.decoder->named_parameters()) {
    if (options.lora.rank > 0) slot->requires_grad_(is_adapter(name));
  }
  model.bit_identical = options.bit_identical;
  if (world.size() == 1 && !options.always_mesh && !options.bit_identical) {
    materialize(*model.decoder, options.device);
  } else if (const auto& l = options.layout) {
    model.planned = std::make_unique<PlannedDecoder>(*model.decoder, *l, world, options.device);
    model.mesh = model.planned->mesh();
  } else {
    model.mesh =
        init_device_mesh(world, options.device, {sizes.dp * sizes.ep, sizes.shard, sizes.tp}, {"dp", "shard", "tp"});
    place_on_mesh(*model.decoder, model.mesh, sizes);
  }
  for (auto* layer : dtensor::moe_layers(*model.decoder))
    layer->reset_parameters();  // Initializes the balancer's bias.
  for (const auto& [name, module] : model.decoder->named_modules()) {
    if (auto* projection = dynamic_cast<dtensor::nn::Linear*>(module)) projection->reset_adapter();
  }
  model.decoder->eval();
  return model;
}

bool is_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

namespace {

at::ScalarType bits_of(const at::Tensor& tensor) {
  const auto bytes = tensor.element_size();
  return bytes == 8 ? at::kLong : bytes == 4 ? at::kInt : at::kShort;
}

// Integer sums do not depend on the order, so the result is the same on any mesh. Storage shards are summed locally,
// without a gather.
std::int64_t sum_of_bits(const dtensor::DTensor& parameter) {
  Placements placements = parameter.placements();
  for (auto& placement : placements) placement = placement.as_storage(false);
  const at::Tensor local = parameter.to_local();
  const auto bits = dtensor::DTensor::from_local(local.view(bits_of(local)), parameter.mesh(), placements,
                                                 parameter.sizes(), parameter.strides());
  return dtensor::DTensor(bits.sum()).full_tensor().item<std::int64_t>();
}

}  // namespace

std::uint64_t base_fingerprint(const Model& model) {
  const at::NoGradGuard no_grad;
  std::uint64_t hash = 0;
  for (const auto& [name, tensor] : model.decoder->named_parameters()) {
    if (is_adapter(name)) continue;
    hash = train::hash64(0, hash + static_cast<std::uint64_t>(sum_of_bits(dtensor::DTensor(*tensor))));
  }
  return hash;
}

dtensor::StateTensors stored_state(const Model& model) {
  dtensor::StateTensors state;
  for (const auto& [name, tensor] : model.decoder->named_parameters()) {
    if (!is_adapter(name)) state.emplace_back(name, *tensor);
  }
  for (const auto& [name, tensor] : model.decoder->named_buffers()) state.emplace_back(name, *tensor);
  return state;
}

void load_parameters(const Model& model, const Family& family, const std::string& folder,
                     const dtensor::Communicator& world) {
  dtensor::LoadOptions options;
  options.allow_cast = true;
  options.names = family.names;
  load_state(folder, world, stored_state(model), options);
}

at::Tensor Model::place(const at::Tensor& ids, bool split_batch) const {
  if (!mesh) return ids.to(device);
  const auto rows = split_batch ? Placements{dtensor::Shard(0), dtensor::Shard(0), dtensor::Replicate()}
                                : Placements(static_cast<std::size_t>(mesh.ndim()));
  return train::place_batch(ids, mesh, rows);
}

}  // namespace llm
