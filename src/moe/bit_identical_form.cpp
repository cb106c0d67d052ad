// What of MixtureOfExperts has no bit-identical form is refused by name.
#include "moe/bit_identical_form.h"

#include "dtensor/nn/float8.h"
#include "internal/bit_identical.h"
#include "moe/dispatch/dispatch_details.h"
#include "moe/experts/expert_parallel.h"
#include "moe/routing/router_parts.h"

namespace dtensor::moe {
namespace {

// Null: nothing.
const char* refused_option(const MixtureOfExperts& layer) {
  const auto& options = layer.options();
  if (options.router.choice == RouterChoice::experts) return "MixtureOfExperts with RouterChoice::experts";
  if (options.router.jitter != 0 && layer.is_training()) return "MixtureOfExperts with jitter";
  if (options.router.sequence_aux_loss != 0) return "MixtureOfExperts with sequence_aux_loss";
  if (options.score_before_experts) return "MixtureOfExperts with score_before_experts";
  if (nn::Float8Scope::current()) return "MixtureOfExperts in a Float8Scope";
  return nullptr;
}

const char* refused_tokens(const MixtureOfExperts& layer, const at::Tensor& x, bool parallel) {
  if (!is_dtensor(x)) return "MixtureOfExperts of regular tensors";
  if (!x.is_cpu()) return "MixtureOfExperts on another device than the CPU";
  const auto& gate = layer.gate.weight;
  if (is_dtensor(gate) && !(DTensor(gate).mesh() == DTensor(x).mesh())) {
    return "MixtureOfExperts with a gate on another mesh than the tokens";
  }
  const bool placed = parallel || DTensor(x).mesh().size() == 1;
  return placed ? nullptr : "MixtureOfExperts on several ranks without apply_expert_parallel()";
}

}  // namespace

void check_bit_identical_form(const MixtureOfExperts& layer, const at::Tensor& x, const Dispatcher& dispatcher,
                              const MixtureOfExperts::Parallel* parallel) {
  if (const auto* option = refused_option(layer)) refuse_if_bit_identical(option);
  if (const auto* tokens = refused_tokens(layer, x, parallel != nullptr)) refuse_if_bit_identical(tokens);
  if (dynamic_cast<const MovesRows*>(&dispatcher) != nullptr) return;
  refuse_if_bit_identical(c10::str("MixtureOfExperts with the dispatcher ", dispatcher.name()).c_str());
}

void check_tokens_in_order(const MixtureOfExperts::Parallel& parallel, const TokenMapping& mapping,
                           std::int64_t tokens) {
  if (parallel.etp && !mapping.etp_ranks_share_tokens) {
    refuse_if_bit_identical("MixtureOfExperts with tokens on a mesh without an axis of the ranks of etp");
  }
  check_row_order("MixtureOfExperts", parallel.mesh, parallel.sources, mapping.layout, tokens);
}

const char* obstacle_to_microbatches(const MixtureOfExperts& layer, const Dispatcher& dispatcher, std::int64_t tokens) {
  const auto& router = layer.options().router;
  if (router.aux_loss != 0) return "aux_loss of MixtureOfExperts, which is no sum over tokens";
  if (router.z_loss != 0 && router.batch_tokens == 0) return "z_loss of MixtureOfExperts without batch_tokens";
  if (layer.options().scale_expert_gradients) return "scale_expert_gradients of MixtureOfExperts";
  if (dynamic_cast<const DropsEntries*>(&dispatcher) != nullptr) return "the capacity of MixtureOfExperts";
  // The experts of the next part begin anew.
  const bool begins_anew = router.choice == RouterChoice::round_robin && tokens * router.top_k % router.experts != 0;
  return begins_anew ? "RouterChoice::round_robin of MixtureOfExperts" : nullptr;
}

Routing route_tokens(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& options,
                     const TokenMapping& mapping, const at::Tensor& bias) {
  const auto& mesh = mapping.mesh;
  const at::Tensor weight =
      is_dtensor(gate) ? gate : DTensor::from_local(gate, mesh, Placements(mesh.ndim()), gate.sizes());
  const auto logits = gate_logits(x, weight).reshape({-1, options.experts});
  return route_logits(DTensor(logits).redistribute(mapping.tokens), options, mapping.layout, bias);
}

}  // namespace dtensor::moe
