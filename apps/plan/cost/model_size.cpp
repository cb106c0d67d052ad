#include "plan/cost/model_size.h"

#include <ATen/ATen.h>

#include <set>

#include "dtensor/moe.h"

namespace plan {

using namespace dtensor;

ModelSize size_of(const Workload& work) {
  const auto& c = work.model;
  ModelSize size;
  auto config = c;
  config.tensor = at::TensorOptions(at::kFloat).device(at::kMeta);
  nn::Decoder model(config);
  std::set<const void*> seen;
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (!seen.insert(tensor->unsafeGetTensorImpl()).second) {  // an embedding that is also the head
      size.active_weights += static_cast<double>(tensor->numel());
      continue;
    }
    const auto count = static_cast<double>(tensor->numel());
    size.parameters += count;
    const bool packed = tensor->dim() == 3;
    if (packed) size.expert_parameters += count;
    if (tensor->dim() < 2 || name == "embed.weight") continue;
    const auto& router = c.experts ? c.experts->router : RouterOptions();
    size.active_weights +=
        packed ? count * static_cast<double>(router.top_k) / static_cast<double>(router.experts) : count;
  }
  const auto pairs = static_cast<double>(c.layers * c.heads * c.checked().head_size * work.sequence);
  size.flops_per_token = 6 * size.active_weights + 12 * pairs;
  size.causal_flops_per_token = 6 * size.active_weights + 6 * pairs;
  return size;
}

double utilization(double flops_per_token, const Workload& work, const ParallelLayout& layout,
                   const HardwareModel& hardware, double seconds) {
  const auto peak = hardware.peak_flops.find(layout.bf16 ? "bfloat16" : "float32");
  if (peak == hardware.peak_flops.end() || seconds <= 0) return 0;
  const auto tokens = static_cast<double>(work.batch * work.sequence);
  return flops_per_token * tokens / seconds / static_cast<double>(layout.ranks()) / peak->second;
}

ModelSize size_of_block(Workload work) {
  const auto sized = [&](std::int64_t layers) {
    auto& c = work.model;
    if (!c.layer.empty()) c.layer.assign(static_cast<std::size_t>(layers), c.layer.back());
    c.layers = layers;
    return size_of(work);
  };
  const auto two = sized(2), one = sized(1);
  ModelSize block;
  block.parameters = two.parameters - one.parameters;
  block.expert_parameters = two.expert_parameters - one.expert_parameters;
  return block;
}

}  // namespace plan
