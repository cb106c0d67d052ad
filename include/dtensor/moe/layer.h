// The mixture-of-experts layer as a module, and expert parallelism. The layer is written for one device.
// apply_expert_parallel() distributes the experts, input placements distribute the tokens; results do not depend on
// either.
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

struct ExpertParallelOptions;
class ExpertWeightCache;
struct ExpertWeights;
namespace moe {
struct TokenMapping;
}

// Options of MixtureOfExperts.
struct MoeOptions {
  // Hidden size of a token, and of each expert.
  std::int64_t hidden = 0, ffn = 0;
  // Options of the router and of the experts.
  RouterOptions router = {};
  ExpertOptions experts = {};
  std::int64_t shared_ffn = 0;          // hidden size of a shared expert; 0: none
  bool shared_gate = false;             // its result is multiplied by sigmoid(gate x), as in Qwen2-MoE
  double balance_rate = 0;              // update rate of LoadBalancer; 0: none
  bool score_before_experts = false;    // multiply by the weights before the experts instead of after
  bool scale_expert_gradients = false;  // weight gradients of an expert are scaled by mean load / load
  // Dtype and device of the parameters.
  at::TensorOptions tensor = {};
};

// Packed w1, w3 [E, F, D] and w2 [E, D, F].
class DTENSOR_API Experts final : public nn::Module {
 public:
  Experts(std::int64_t experts, std::int64_t hidden, std::int64_t ffn, bool gated, at::TensorOptions options);
  void reset_parameters() override;
  // The weights; w3 is defined for gated activations only.
  at::Tensor w1, w2, w3;
};

// A router and its experts.
class DTENSOR_API MixtureOfExperts final : public nn::Layer<MixtureOfExperts> {
 public:
  // An expert that computes all tokens: w1, w3 [F, D], w2 [D, F]; gate [1, D] is the weight of its result.
  class DTENSOR_API SharedExpert final : public nn::Module {
   public:
    SharedExpert(std::int64_t hidden, std::int64_t ffn, bool gated, bool result_gate, at::TensorOptions options);
    void reset_parameters() override;
    // The weights; w3 is defined for gated activations only, gate with MoeOptions::shared_gate.
    at::Tensor w1, w2, w3, gate;
  };

  explicit MixtureOfExperts(const MoeOptions& options);
  ~MixtureOfExperts() override;

  // Statistics of the last forward pass on this rank.
  struct Stats {
    at::Tensor load;           // [experts] entries, before dropping
    std::int64_t dropped = 0;  // dropped entries
  };
  // Result of run() and call_with_loss().
  struct Output {
    at::Tensor y;     // same shape as x
    at::Tensor loss;  // router loss, a scalar to add to the mean loss; undefined without coefficients
    // Both.
    nn::TensorSlots tensors() { return {&y, &loss}; }
  };
  // x [tokens, D] or [batch, sequence, D]: a DTensor, or a regular tensor with this rank's tokens. For a regular tensor
  // the loss is this rank's summand of a sum over ranks.
  Output run(const at::Tensor& x);
  Output call_with_loss(const at::Tensor& x);  // a call of the layer: as run(), with hooks
  at::Tensor forward(const at::Tensor& x) { return run(x).y; }
  at::Tensor compute(const at::Tensor& x) { return compute_with_loss(x).y; }
  void reset_parameters() override;

  // Selects the dispatcher.
  void set_dispatch(DispatchKind kind, CapacityOptions capacity = {});
  // A user-defined dispatcher. `make` is called now and whenever the ranks that share the experts change (undefined
  // communicator: this rank alone).
  using MakeDispatcher = std::function<std::shared_ptr<const Dispatcher>(const Communicator& ranks)>;
  void set_dispatcher(MakeDispatcher make);
  const MoeOptions& options() const { return options_; }
  const Stats& stats() const { return stats_; }
  const ExpertWeightCache& weight_cache() const { return *cache_; }
  LoadBalancer* balancer() { return balancer_.get(); }

  // Weight of the router, the experts, and the shared expert (null: none).
  nn::Linear gate;
  Experts experts;
  std::unique_ptr<SharedExpert> shared;

  struct Parallel;  // location of the experts

 private:
  friend DTENSOR_API int apply_expert_parallel(nn::Module& model, const DeviceMesh& mesh,
                                               const ExpertParallelOptions& options);
  void set_parallel(std::shared_ptr<const Parallel> parallel);

  struct Pass;
  Output compute_with_loss(const at::Tensor& x);
  // `keep`: tensors that results must not be written into.
  Output run_tokens(const at::Tensor& x, std::vector<at::Tensor> keep);
  at::Tensor run_experts_here(const at::Tensor& rows, DispatchPlan& plan, const Pass& pass);
  ExpertWeights local_experts(const Pass& pass) const;
  at::Tensor run_shared(const at::Tensor& x, const moe::TokenMapping& mapping) const;

  MoeOptions options_;
  std::unique_ptr<LoadBalancer> balancer_;
  std::shared_ptr<const Parallel> parallel_;
  std::shared_ptr<const Dispatcher> dispatcher_;
  MakeDispatcher make_;
  Stats stats_;
  std::unique_ptr<ExpertWeightCache> cache_;
  struct Seen;
  std::unique_ptr<Seen> seen_;  // layouts of previous inputs
};

// Options of apply_expert_parallel().
struct ExpertParallelOptions {
  // Names of mesh axes. ep splits the experts. edp shards their storage (gathered on use, or left to fully_shard() if
  // the mesh lacks this axis). etp shards the hidden dimension of each expert. A 1-D mesh needs no names.
  std::string ep = "ep", edp = "edp", etp = "etp";
};

// Moves the experts of each MixtureOfExperts and RoutedExperts in `model` to `mesh`: a view (edp x ep x etp) of the
// ranks of the dense mesh, or a slice of it. The size of ep must divide the number of experts. Call it before
// fully_shard() of other parameters. On the meta device, call it before parallelize(), so that only local parts are
// allocated. A mesh of one rank changes nothing. Returns the number of layers.
DTENSOR_API int apply_expert_parallel(nn::Module& model, const DeviceMesh& mesh,
                                      const ExpertParallelOptions& options = {});

// The layers of a model, in order.
DTENSOR_API std::vector<MixtureOfExperts*> moe_layers(nn::Module& model);
// Expert parameters (experts.w1, ...; all parameters of RoutedExperts), for a separate FSDP unit.
DTENSOR_API NamedTensors expert_parameters(nn::Module& model);
// Updates the biases of all layers that have a balancer, in one collective over `ranks`, the ranks with different
// tokens. Call it after each optimizer step.
DTENSOR_API void update_load_balancers(nn::Module& model, const Communicator& ranks);

// Counters of the optimized paths in mixture-of-experts layers, for forward passes (including recomputation) while a
// MoeCountersScope is open.
struct MoeCounters {
  // Number of forward passes.
  std::int64_t passes = 0;
  std::int64_t histograms = 0;         // entries were counted by expert
  std::int64_t sorts = 0;              // entries were sorted by expert
  std::int64_t cached_routings = 0;    // experts, counts and order came from the cache for this input size
  std::int64_t cached_plans = 0;       // the exchange plan came from the cache as well
  std::int64_t equal_exchanges = 0;    // rows were exchanged without counts
  std::int64_t padding_rows = 0;       // zero rows that this rank sent so that all segments have one size
  std::int64_t packed_weights = 0;     // experts used packed weights, in two batched products
  std::int64_t aligned_passes = 0;     // experts used grouped products, without sizes on the host
  std::int64_t aligned_rows = 0;       // rows of these products, including padding
  std::int64_t in_place_combines = 0;  // results were added in place to the shared expert's output
  std::int64_t float8_passes = 0;      // experts multiplied in float8
  std::int64_t rounded_scores = 0;     // the router scored tokens or a gate of 16 bits (bfloat16, float16), in float
};

// While it lives, layers on this thread count into `counters`, also in recomputation. The innermost scope applies.
class DTENSOR_API MoeCountersScope {
 public:
  explicit MoeCountersScope(MoeCounters& counters);

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
