#include "train/layouts/flops.h"

namespace train {
namespace {

// Number of weights of this parameter that one token is multiplied with.
double weights_per_token(const std::string& name, const at::Tensor& parameter, const GptConfig& config) {
  if (parameter.dim() < 2 || name == "embed.weight") return 0;
  const auto all = static_cast<double>(parameter.numel());
  if (parameter.dim() == 2) return all;
  const auto& router = config.experts->router;  // Experts are packed: [experts, rows, columns].
  return all * static_cast<double>(router.top_k) / static_cast<double>(router.experts);
}

}  // namespace

double flops_per_token(GptConfig config, std::int64_t sequence, AttentionFlops attention) {
  config.tensor = config.tensor.device(at::kMeta);
  Gpt model(config);
  double weights = 0;
  for (const auto& [name, parameter] : model.named_parameters()) weights += weights_per_token(name, *parameter, config);
  const double per_pair = attention == AttentionFlops::full ? 12 : 6;
  return 6 * weights + per_pair * static_cast<double>(config.layers * config.hidden * sequence);
}

}  // namespace train
