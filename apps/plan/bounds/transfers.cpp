#include "plan/bounds/transfers.h"

#include <algorithm>
#include <vector>

namespace plan {

using namespace dtensor;

namespace {

// Microbatches that reduce gradients.
double reducing(const ParallelLayout& l) {
  return l.pp == 1 && l.accumulate_sharded ? static_cast<double>(l.microbatches) : 1;
}

// All of them, one after another. A stage keeps its last block for backward.
double total(const ParallelLayout& l, const RankCompute& rank, double gather, double reduction) {
  const auto gathers = l.reshard ? l.microbatches * std::max(rank.blocks, 2 * rank.blocks - rank.stages) : rank.blocks;
  return static_cast<double>(gathers) * gather + reducing(l) * static_cast<double>(rank.blocks) * reduction;
}

// What of the gathers and reductions of a block's experts no operator hides, in a step.
double exposed(const ParallelLayout& l, const BlockCost& block, double gather, double reduction) {
  const auto over = [](double seconds, double window) { return std::max(0.0, seconds - window); };
  const double in_forward = over(gather, block.forward_gather), in_backward = over(gather, block.backward_gather),
               of_reduction = over(reduction, block.reduction),
               both = std::max(in_backward + of_reduction, over(reduction + gather, block.reduction_and_gather));
  const double reduces = reducing(l), microbatches = static_cast<double>(l.microbatches);
  if (!l.reshard) return in_forward + reduces * of_reduction;
  return microbatches * in_forward + (microbatches - reduces) * in_backward + reduces * both;
}

}  // namespace

Transfers::OfBlock Transfers::of_block(const ParallelLayout& l, double parameters, std::int64_t ranks,
                                       std::int64_t stride) const {
  if (parameters == 0) return {0, 0};
  std::vector<std::int64_t> group;
  for (std::int64_t i = 0; i < ranks; ++i) group.push_back(i * stride);
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  const auto seconds = [&](const char* collective, double element_bytes) {
    return hardware_.seconds(collective, group, static_cast<std::int64_t>(element_bytes * parameters * others));
  };
  return {seconds("all_gather", l.bf16 ? 2 : 4), seconds("reduce_scatter", l.bf16_parameters ? 2 : 4)};
}

double Transfers::with_compute(const ParallelLayout& l, const RankCompute& rank, const BlockCost& block) const {
  const double parameters = block_.parameters - block_.expert_parameters;
  const auto dense = of_block(l, parameters / static_cast<double>(l.tp), l.shard * l.cp, l.tp),
             experts = of_block(l, block_.expert_parameters / static_cast<double>(l.ep), l.ranks() / l.pp / l.ep, l.ep);
  const double of_dense = total(l, rank, dense.gather, dense.reduction),
               of_experts = total(l, rank, experts.gather, experts.reduction);
  if (!hardware_.asynchronous) return rank.seconds + of_dense + of_experts;
  // A stage keeps the experts of its last block for backward.
  const auto repeated = static_cast<double>(std::max<std::int64_t>(0, rank.blocks - rank.stages));
  const double waits = repeated * exposed(l, block, experts.gather, experts.reduction);
  return std::max({rank.seconds + waits, of_dense, of_experts});
}

}  // namespace plan
