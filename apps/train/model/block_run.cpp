// How programs run the blocks of a decoder, and split its activations along the sequence.
#include "train/model/block_run.h"

#include <optional>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/nn/float8.h"

namespace train {

using namespace dtensor;

namespace {

RecomputeOptions options_of(Recomputation recompute) {
  RecomputeOptions options;
  if (recompute == Recomputation::selective) {
    options.keep = {"aten::mm", "aten::linear", "aten::_scaled_mm",
                    "aten::_scaled_dot_product_flash_attention_for_cpu"};
  }
  return options;
}

}  // namespace

nn::DecoderBlock::Output run_block(const nn::DecoderBlock& block, const at::Tensor& x, const nn::DecoderPass& pass,
                                   const BlockRun& run) {
  std::optional<nn::Float8Scope> float8;
  if (run.float8) float8.emplace();
  if (run.recompute == Recomputation::none) return block(x, pass);
  using Tensors = std::vector<at::Tensor>;
  const auto forward = [&block, pass](const Tensors& inputs) {
    const auto out = block(inputs[0], pass);
    return out.loss.defined() ? Tensors{out.y, out.loss} : Tensors{out.y};
  };
  const auto results = checkpoint(forward, Tensors{x}, options_of(run.recompute));
  return {results[0], results.size() > 1 ? results[1] : at::Tensor()};
}

ParallelPlan with_sequence_parallelism(ParallelPlan plan, bool mlp) {
  for (auto& [pattern, style] : plan) {
    if (auto* row = std::get_if<RowwiseParallel>(&style)) row->out = Shard(1);
    auto* head = pattern.starts_with("layers.") ? nullptr : std::get_if<ColwiseParallel>(&style);
    if (head != nullptr) head->in = Replicate();
  }
  plan.emplace_back("layers.*.attn", PrepareModuleInput{Replicate()});
  if (mlp) plan.emplace_back("layers.*.mlp", PrepareModuleInput{Replicate()});
  return plan;
}

}  // namespace train
