#include "workload.h"

namespace plan {

using namespace dtensor;

nn::DecoderConfig last_blocks(const nn::DecoderConfig& model, std::int64_t blocks) {
  auto config = model.checked();
  auto& layers = config.layer;
  config.layers = blocks;
  layers.erase(layers.begin(), layers.end() - std::min<std::ptrdiff_t>(blocks, std::ssize(layers)));
  layers.resize(static_cast<std::size_t>(blocks), layers.back());
  config.tensor = at::TensorOptions(at::kFloat).device(at::kMeta);
  if (config.experts) {  // A dry run knows no scores: tokens go to the experts in turn.
    config.experts->router.choice = RouterChoice::round_robin;
    config.experts->router.groups = config.experts->router.top_groups = 1;
    config.experts->balance_rate = 0;
  }
  return config;
}

}  // namespace plan
