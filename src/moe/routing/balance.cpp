// Load balancing: losses over the batch and over sequences, and a bias that follows the load.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>

#include "dtensor/tensor.h"
#include "internal/bit_identical.h"
#include "moe/routing/router_parts.h"
#include "moe/token_mapping.h"

namespace dtensor {
namespace moe {
namespace {

// Scores normalized to a distribution over experts.
at::Tensor probabilities(const Routing& routing, const RouterOptions& o) {
  if (o.score == RouterScore::softmax) return routing.scores;
  return routing.scores / (routing.scores.sum(1, /*keepdim=*/true) + 1e-20);
}

// E * sum_e f_e P_e, with f the fraction of all entries and P the mean probability.
at::Tensor switch_loss(const at::Tensor& p, const Routing& routing, const TokenLayout& layout, double tokens) {
  const auto counts = routing.counts->on_device(layout.ranks).sum(0).to(p.scalar_type());
  const double entries = tokens * static_cast<double>(routing.experts.size(1));
  const auto experts = static_cast<double>(routing.expert_count);
  return (counts * p.sum(0)).sum() * (experts / entries / tokens);
}

// [tokens, width] to [sequences here, tokens per sequence, width]
at::Tensor by_sequence(const at::Tensor& t, const TokenLayout& layout) {
  const auto here = std::max<std::int64_t>(layout.sequences_here, 1);
  TORCH_CHECK(t.size(0) % here == 0, "route: expected sequences of equal length, got ", t.size(0), " tokens in ", here,
              " sequences");
  return t.view({layout.sequences_here, t.size(0) / here, t.size(1)});
}

// [sequences here, experts]: entries of each sequence, on all ranks that have a part of it.
at::Tensor counts_of_sequences(const Routing& routing, const TokenLayout& layout) {
  const at::NoGradGuard no_grad;
  const auto chosen = by_sequence(routing.experts, layout).flatten(1);
  auto counts = at::zeros({layout.sequences_here, routing.expert_count + 1}, chosen.options());
  counts.scatter_add_(1, chosen, at::ones_like(chosen));
  counts = counts.narrow(1, 0, routing.expert_count).contiguous();
  if (layout.sequence_ranks && layout.sequence_ranks.size() > 1) {
    layout.sequence_ranks.all_reduce(counts, ReduceOp::sum).wait();
  }
  return counts;
}

// The mean over sequences of E * sum_e f_e P_e, computed per sequence.
at::Tensor sequence_loss(const at::Tensor& p, const Routing& routing, const TokenLayout& layout, double tokens) {
  const auto counts = counts_of_sequences(routing, layout).to(p.scalar_type());
  const auto sums = by_sequence(p, layout).sum(1);
  const auto here = static_cast<double>(p.size(0));
  if (here == 0) return sums.sum();  // no part of the loss, but a graph
  // Sequences have equal length, so an unknown number of sequences follows from those of this rank.
  const double sequences = layout.sequences >= 0 ? static_cast<double>(layout.sequences)
                                                 : tokens * static_cast<double>(layout.sequences_here) / here;
  const double length = tokens / sequences;
  const double entries = length * static_cast<double>(routing.experts.size(1));
  return (counts * sums).sum() * (static_cast<double>(routing.expert_count) / entries / length / sequences);
}

// logsumexp along dimension 1. ATen's operator has no bit-identical form, its parts have.
at::Tensor log_sum_exp(const at::Tensor& logits) {
  if (!is_bit_identical()) return at::logsumexp(logits, {1});
  const auto most = logits.detach().amax(1, /*keepdim=*/true);
  return (logits - most).exp().sum(1).log() + most.squeeze(1);
}

void add(at::Tensor& sum, const at::Tensor& loss) { sum = sum.defined() ? sum + loss : loss; }

}  // namespace

at::Tensor router_loss(const at::Tensor& logits, const Routing& routing, const RouterOptions& o,
                       const TokenLayout& layout) {
  if (o.aux_loss == 0 && o.sequence_aux_loss == 0 && o.z_loss == 0) return {};
  TORCH_CHECK(
      !routing.by_experts || (o.aux_loss == 0 && o.sequence_aux_loss == 0),
      "route: aux_loss and sequence_aux_loss do not apply to RouterChoice::experts, which is balanced; set them to 0");
  const auto tokens = static_cast<double>(layout.total >= 0 ? layout.total : token_range(routing, layout).total);
  const auto batch = o.batch_tokens > 0 ? static_cast<double>(o.batch_tokens) : tokens;
  const auto share = layout.share * tokens / batch;
  const auto p = probabilities(routing, o);
  at::Tensor sum;
  if (o.aux_loss != 0) add(sum, switch_loss(p, routing, layout, tokens) * (o.aux_loss * share));
  if (o.sequence_aux_loss != 0) add(sum, sequence_loss(p, routing, layout, tokens) * (o.sequence_aux_loss * share));
  // Terms are scaled before the sum, so that those of microbatches have the bits of the batch's.
  if (o.z_loss != 0) add(sum, (log_sum_exp(logits).square() * (o.z_loss * layout.share / batch)).sum());
  return sum;
}

}  // namespace moe

LoadBalancer::LoadBalancer(std::int64_t experts, double step, at::TensorOptions options)
    : bias(moe::local_view(at::zeros({experts}, options.dtype(at::kFloat)))),
      counts(moe::local_view(at::zeros({experts}, options.dtype(at::kLong)))),
      rate(step) {}

void LoadBalancer::count(const Routing& routing) {
  const bool recomputes = torch::autograd::get_current_graph_task_id() != -1;
  if (recomputes) return;
  const at::NoGradGuard no_grad;
  counts.add_(routing.counts->local());
}

void update_load_balancers(const std::vector<LoadBalancer*>& balancers, const Communicator& ranks) {
  if (balancers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const auto* b : balancers) all.push_back(b->counts);
  auto loads = at::cat(all);
  if (ranks && ranks.size() > 1) ranks.all_reduce(loads, ReduceOp::sum).wait();
  std::int64_t at = 0;
  for (auto* b : balancers) {
    const auto load = loads.narrow(0, at, b->counts.size(0)).to(b->bias.scalar_type());
    moe::local_view(b->bias).add_(at::sign(load.mean() - load), b->rate);
    b->counts.zero_();
    at += b->counts.size(0);
  }
}

}  // namespace dtensor
