// The mixture-of-experts layer as a module, and expert parallelism: where its experts live. Written for one device;
// apply_expert_parallel() spreads the experts, placements of the input spread the tokens, and neither changes a number.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/moe/dispatch.h"
#include "dtensor/moe/experts.h"
#include "dtensor/moe/router.h"
#include "dtensor/nn.h"

namespace dtensor {

namespace moe {
struct TokenMapping;
}

// Of a layer.
struct MoeOptions {
  // Features of a token, and inside each expert.
  std::int64_t hidden = 0, ffn = 0;
  // Who chooses experts, and how they compute.
  RouterOptions router = {};
  ExpertOptions experts = {};
  std::int64_t shared_ffn = 0;          // a shared expert's; 0: none
  double balance_rate = 0;              // of LoadBalancer; 0: none
  bool score_before_experts = false;    // tokens are weighted on their way to experts, not results on their way back
  bool scale_expert_gradients = false;  // by mean load / load of the expert, of the weights only
  // Dtype and device of the parameters.
  at::TensorOptions tensor = {};
};

// Packed w1, w3 [E, F, D] and w2 [E, D, F].
class DTENSOR_API Experts final : public nn::Module {
 public:
  Experts(std::int64_t experts, std::int64_t hidden, std::int64_t ffn, bool gated, at::TensorOptions options);
  void reset_parameters() override;
  // The weights; w3 where the activation is gated.
  at::Tensor w1, w2, w3;
};

// One expert that sees every token: w1, w3 [F, D], w2 [D, F].
class DTENSOR_API SharedExpert final : public nn::Module {
 public:
  SharedExpert(std::int64_t hidden, std::int64_t ffn, bool gated, at::TensorOptions options);
  void reset_parameters() override;
  // The weights; w3 where the activation is gated.
  at::Tensor w1, w2, w3;
};

// How tokens travel: dropless by all_to_all or all_gather, with a capacity, or for loads that are equal by
// construction.
enum class DispatchKind : std::uint8_t { all_to_all, all_gather, capacity, equal };

// What happened in the last forward pass, on this rank.
struct MoeStats {
  at::Tensor load;           // [experts] entries, before dropping
  std::int64_t dropped = 0;  // entries
};

// A router, its experts, and the way between them.
class DTENSOR_API MixtureOfExperts final : public nn::Module {
 public:
  explicit MixtureOfExperts(const MoeOptions& options);
  ~MixtureOfExperts() override;

  // Of run().
  struct Output {
    at::Tensor y;     // as x
    at::Tensor loss;  // of the router, a scalar to be added to the mean loss; undefined where no coefficient is set
  };
  // x [tokens, D] or [batch, sequence, D]: a DTensor, or a plain tensor of this rank's own tokens. In the second case
  // the loss is this rank's share of a sum over ranks.
  Output run(const at::Tensor& x);
  at::Tensor forward(const at::Tensor& x) { return run(x).y; }

  void reset_parameters() override;
  // Another way for tokens to travel.
  void set_dispatch(DispatchKind kind, CapacityOptions capacity = {});
  // A dispatcher of the user's own, made for the ranks that share the experts (none: this rank alone), now and whenever
  // they change.
  using MakeDispatcher = std::function<DispatcherPtr(const Communicator& ranks)>;
  void set_dispatcher(MakeDispatcher make);
  const MoeOptions& options() const { return options_; }
  const MoeStats& stats() const { return stats_; }
  const ExpertWeightCache& weight_cache() const { return cache_; }
  LoadBalancer* balancer() { return balancer_.get(); }

  // The router's weight, the experts, and the one that sees every token (null: none).
  nn::Linear gate;
  Experts experts;
  std::unique_ptr<SharedExpert> shared;

  struct Parallel;  // where the experts are
  // For apply_expert_parallel.
  void set_parallel(std::shared_ptr<const Parallel> parallel);

 private:
  struct Pass;
  // `keep`: what results must not be written into.
  Output run_tokens(const at::Tensor& x, std::vector<at::Tensor> keep);
  at::Tensor run_experts_here(const at::Tensor& rows, DispatchPlan& plan, const Pass& pass);
  ExpertWeights local_experts(const Pass& pass) const;
  at::Tensor run_shared(const at::Tensor& x, const moe::TokenMapping& mapping) const;

  MoeOptions options_;
  std::unique_ptr<LoadBalancer> balancer_;
  std::shared_ptr<const Parallel> parallel_;
  DispatcherPtr dispatcher_;
  MakeDispatcher make_;
  MoeStats stats_;
  ExpertWeightCache cache_;
  struct Seen;
  std::unique_ptr<Seen> seen_;  // layouts of inputs met before
};

// Where experts go.
struct ExpertParallelOptions {
  // Names of mesh axes. Experts are split over ep; stored split over edp (gathered where used, or left to fully_shard()
  // where the mesh lacks that axis); each split along its hidden dimension over etp. A 1-D mesh needs no names.
  std::string ep = "ep", edp = "edp", etp = "etp";
};

// Moves the experts of every MixtureOfExperts and RoutedExperts in `model` to `mesh`, a sparse view (edp x ep x etp) of
// the ranks of the dense mesh, or its slice: ep splits them by expert, which must divide their number. Call it before
// fully_shard() of the rest, and before parallelize() where the model is on the meta device (parts only get memory). A
// mesh of one rank changes nothing. Returns the number of layers.
DTENSOR_API int apply_expert_parallel(nn::Module& model, const DeviceMesh& mesh,
                                      const ExpertParallelOptions& options = {});

// The layers of a model, in order.
DTENSOR_API std::vector<MixtureOfExperts*> moe_layers(nn::Module& model);
// The parameters of experts (experts.w1, ...; all of RoutedExperts), for an FSDP unit of their own.
DTENSOR_API NamedTensors expert_parameters(nn::Module& model);
// Call after each optimizer step: the biases of all layers that have a balancer, in one collective over `ranks`, those
// with different tokens.
DTENSOR_API void update_load_balancers(nn::Module& model, const Communicator& ranks);

// How often a mixture of experts took the ways that save work: counted where somebody asks for it.

// Of the forward passes that ran while a MoeCountersScope lived, those of recomputation included.
struct MoeCounters {
  // Forward passes.
  std::int64_t passes = 0;
  std::int64_t histograms = 0;         // entries were counted by expert
  std::int64_t sorts = 0;              // entries were put in order of experts
  std::int64_t cached_routings = 0;    // experts, counts and order were those kept for inputs of this size
  std::int64_t cached_plans = 0;       // and so was the plan of the exchange
  std::int64_t equal_exchanges = 0;    // rows were exchanged without counts
  std::int64_t packed_weights = 0;     // experts ran on packed weights, in two batched products
  std::int64_t aligned_passes = 0;     // experts ran on groups padded to blocks, whose sizes the host did not know
  std::int64_t aligned_rows = 0;       // rows of those, padding included
  std::int64_t in_place_combines = 0;  // results were added into what a shared expert had made
};

// While it lives, layers that run on this thread count into `counters`, also in recomputation. The innermost counts.
class DTENSOR_API MoeCountersScope {
 public:
  explicit MoeCountersScope(MoeCounters& counters);

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
