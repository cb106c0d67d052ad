#include "llm/commands/optimizer.h"

#include <ATen/ATen.h>

#include <vector>

namespace llm {

using namespace dtensor;

namespace {

template <class Rule, class Options>
std::unique_ptr<Optimizer> one_group(const NamedTensors& parameters, const Options& options) {
  typename Rule::Group group{.parameters = {}, .options = options, .names = {}};
  for (const auto& [name, tensor] : parameters) {
    group.names.push_back(name);
    group.parameters.push_back(*tensor);
  }
  return std::make_unique<Rule>(std::vector{std::move(group)});
}

// The gates of routers and of shared experts are look-up tables of scores.
bool is_matrix(const std::string& name, const at::Tensor& parameter) {
  const bool gate = name.ends_with("gate.weight") || name.ends_with(".gate");
  return parameter.dim() >= 2 && name.starts_with("layers.") && !gate;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const NamedTensors& parameters,
                                          const AdamWOptions& options) {
  if (name == "adamw") return one_group<AdamW>(parameters, options);
  TORCH_CHECK(name == "muon", "expected the optimizer adamw or muon, got ", name);
  NamedTensors matrices, rest;
  for (const auto& item : parameters) (is_matrix(item.first, *item.second) ? matrices : rest).push_back(item);
  std::vector<std::unique_ptr<Optimizer>> parts;
  const MuonOptions muon{.lr = options.lr, .weight_decay = options.weight_decay, .match_adamw_rms = true};
  parts.push_back(one_group<Muon>(matrices, muon));
  parts.push_back(one_group<AdamW>(rest, options));
  return std::make_unique<CombinedOptimizer>(std::move(parts));
}

}  // namespace llm
