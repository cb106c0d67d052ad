// The layer: router, dispatcher, experts and combination; conversion between DTensors and local tokens.
#include "dtensor/moe/layer.h"

#include <ATen/ATen.h>

#include "dtensor/debug.h"
#include "dtensor/nn/float8.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"
#include "internal/nested_backward.h"
#include "internal/selective_checkpoint_cache.h"
#include "moe/bit_identical_form.h"
#include "moe/counting.h"
#include "moe/dispatch/dispatch_details.h"
#include "moe/dispatch/permute.h"
#include "moe/experts/expert_parallel.h"
#include "moe/experts/experts.h"
#include "moe/experts/float8_experts.h"
#include "moe/experts/linear_over_blocks.h"
#include "moe/local_function.h"
#include "moe/routing/router_parts.h"
#include "moe/row_kernels.h"
#include "moe/token_mapping.h"

namespace dtensor {

Experts::Experts(std::int64_t experts, std::int64_t hidden, std::int64_t ffn, bool gated, at::TensorOptions options)
    : w1(at::empty({experts, ffn, hidden}, options)), w2(at::empty({experts, hidden, ffn}, options)) {
  if (gated) w3 = at::empty({experts, ffn, hidden}, options);
  register_parameter("w1", w1);
  register_parameter("w2", w2);
  register_parameter("w3", w3);
  Experts::reset_parameters();
}

void Experts::reset_parameters() {
  reset_uniform(w1, w1.size(2));
  reset_uniform(w2, w2.size(2));
  reset_uniform(w3, w1.size(2));
}

MixtureOfExperts::SharedExpert::SharedExpert(std::int64_t hidden, std::int64_t ffn, bool gated, bool result_gate,
                                             at::TensorOptions options)
    : w1(at::empty({ffn, hidden}, options)), w2(at::empty({hidden, ffn}, options)) {
  if (gated) w3 = at::empty({ffn, hidden}, options);
  if (result_gate) gate = at::empty({1, hidden}, options);
  register_parameter("w1", w1);
  register_parameter("w2", w2);
  register_parameter("w3", w3);
  register_parameter("gate", gate);
  SharedExpert::reset_parameters();
}

void MixtureOfExperts::SharedExpert::reset_parameters() {
  reset_uniform(w1, w1.size(1));
  reset_uniform(w2, w2.size(1));
  reset_uniform(w3, w1.size(1));
  reset_uniform(gate, w1.size(1));
}

struct MixtureOfExperts::Seen {
  moe::TokenMappings mappings;
  bool has_own_strategy = false;  // a user-defined one
};

struct MixtureOfExperts::Pass {
  const moe::TokenMapping& mapping;
  const Routing& routing;
  std::int64_t sequence;  // tokens of each
};

MixtureOfExperts::MixtureOfExperts(const MoeOptions& options)
    : gate(options.hidden, options.router.experts, /*bias=*/false, options.tensor),
      experts(options.router.experts, options.hidden, options.ffn, is_gated(options.experts.activation),
              options.tensor),
      options_(options),
      cache_(std::make_unique<ExpertWeightCache>()),
      seen_(std::make_unique<Seen>()) {
  TORCH_CHECK(!options.shared_gate || options.shared_ffn > 0,
              "MixtureOfExperts: shared_gate needs a shared expert; expected shared_ffn > 0, got ", options.shared_ffn);
  register_module("gate", gate);
  register_module("experts", experts);
  if (options.shared_ffn > 0) {
    shared = std::make_unique<SharedExpert>(options.hidden, options.shared_ffn, is_gated(options.experts.activation),
                                            options.shared_gate, options.tensor);
    register_module("shared", *shared);
  }
  if (options.balance_rate != 0) {
    balancer_ = std::make_unique<LoadBalancer>(options.router.experts, options.balance_rate,
                                               at::TensorOptions().device(options.tensor.device()));
    register_buffer("balance", balancer_->bias);
  }
  seen_->has_own_strategy = options_.router.strategy != nullptr;
  if (!seen_->has_own_strategy) options_.router.strategy = make_strategy(options_.router.choice);
  set_dispatch(DispatchKind::all_to_all);
}

MixtureOfExperts::~MixtureOfExperts() = default;

// Resets the bias of the balancer and its counts to zero on all ranks, on the device of the gate.
void MixtureOfExperts::reset_parameters() {
  if (!balancer_) return;
  if (!balancer_->bias.is_meta()) {
    moe::local_view(balancer_->bias).zero_();
    balancer_->counts.zero_();
    return;
  }
  const auto device = gate.weight.device();
  LoadBalancer fresh(balancer_->bias.size(0), balancer_->rate, at::TensorOptions().device(device));
  balancer_->bias = fresh.bias;
  balancer_->counts = fresh.counts;
}

void MixtureOfExperts::set_dispatch(DispatchKind kind, CapacityOptions capacity) {
  set_dispatcher([=](const Communicator& ranks) { return make_dispatcher(kind, ranks, capacity); });
}

namespace {

std::shared_ptr<const Dispatcher> made_by(const MixtureOfExperts::MakeDispatcher& make, const Communicator& ranks) {
  auto made = make(ranks);
  TORCH_CHECK(made, "MixtureOfExperts: the function given to set_dispatcher() returned null");
  return made;
}

}  // namespace

// Keeps the previous dispatcher if `make` throws.
void MixtureOfExperts::set_dispatcher(MakeDispatcher make) {
  auto made = made_by(make, parallel_ ? parallel_->ep : Communicator());
  make_ = std::move(make);
  dispatcher_ = std::move(made);
}

void MixtureOfExperts::set_parallel(std::shared_ptr<const Parallel> parallel) {
  dispatcher_ = made_by(make_, parallel ? parallel->ep : Communicator());
  parallel_ = std::move(parallel);
  seen_->mappings.clear();
}

namespace {

// Noise for the gate in training. It depends on the global index of each element if `x` is a DTensor.
at::Tensor with_jitter(const at::Tensor& x, double jitter) {
  const at::NoGradGuard no_grad;
  return at::rand_like(x.detach(), x.options().dtype(at::kFloat)).mul_(2 * jitter).add_(1 - jitter);
}

void check_equal_tokens(const Dispatcher& dispatcher, const moe::TokenMapping& mapping) {
  if (mapping.min_tokens == mapping.max_tokens || dynamic_cast<const moe::NeedsEqualTokens*>(&dispatcher) == nullptr)
    return;
  TORCH_CHECK(false, dispatcher.name(), ": ", mapping.layout.total, " tokens on ", mapping.layout.ranks.size(),
              " ranks, ", mapping.min_tokens, " to ", mapping.max_tokens,
              " on each; expected the same number on all ranks (use DispatchKind::all_to_all otherwise)");
}

// Whether results of operators are kept for a recomputation, so that they must not be written.
bool keeps_results() {
  const auto* kept = ScopedValue<SelectiveCheckpointCache::Recording>::current();
  return kept != nullptr && kept->state != nullptr;
}

// The shared expert's output as rows of this rank's tokens, to which results may be added in place. Undefined if the
// placements differ (for instance a sum over tp), if results are kept, or if a gradient is recorded, which adds full
// tensors anyway.
at::Tensor shared_rows(const at::Tensor& made, const moe::TokenMapping& mapping, at::IntArrayRef rows) {
  if (!made.defined()) return {};
  if (!is_dtensor(made)) return made.reshape(rows);
  if (at::GradMode::is_enabled() || keeps_results() || !mapping.mesh || !(DTensor(made).mesh() == mapping.mesh))
    return {};
  const auto& came = DTensor(made).placements();
  for (std::size_t a = 0; a < came.size(); ++a) {
    const bool cuts = came[a].is_replicate() && mapping.result[a].is_shard();  // a local slice, without communication
    if (came[a] != mapping.result[a] && !cuts) return {};
  }
  return DTensor(made).redistribute(mapping.result).to_local().reshape(rows);
}

}  // namespace

MixtureOfExperts::Output MixtureOfExperts::run(const at::Tensor& x) {
  return run_call(/*hooks=*/false, [this](const at::Tensor& tokens) { return compute_with_loss(tokens); }, x);
}

MixtureOfExperts::Output MixtureOfExperts::call_with_loss(const at::Tensor& x) {
  return call([this](const at::Tensor& tokens) { return compute_with_loss(tokens); }, x);
}

MixtureOfExperts::Output MixtureOfExperts::compute_with_loss(const at::Tensor& x) {
  moe::count(&MoeCounters::passes);
  TORCH_CHECK(x.dim() >= 2 && x.size(-1) == options_.hidden,
              "MixtureOfExperts: expected an input [tokens, hidden] or [batch, sequence, hidden], got ", x.sizes(),
              " for a hidden size of ", options_.hidden);
  if (!is_bit_identical()) return run_tokens(x, {moe::local_view(x)});
  TORCH_CHECK_NOT_IMPLEMENTED(!seen_->has_own_strategy,
                              "MixtureOfExperts with a user-defined RoutingStrategy has no bit-identical form");
  moe::check_bit_identical_form(*this, x, *dispatcher_, parallel_.get());
  auto made = run_tokens(x, {});
  made.y = DTensor(made.y.view(x.sizes())).redistribute(DTensor(x).placements());
  return made;
}

MixtureOfExperts::Output MixtureOfExperts::run_tokens(const at::Tensor& x, std::vector<at::Tensor> keep) {
  const auto as_tokens = [&](const at::Tensor& t) { return is_bit_identical() ? t.reshape({-1, t.size(-1)}) : t; };
  const auto given = as_tokens(x);
  const auto& mapping = seen_->mappings.of(given, parallel_ ? parallel_->mesh : DeviceMesh(),
                                           parallel_ ? parallel_->etp_ranks : std::vector<std::int64_t>());
  const NoMeshScopeGuard regular;  // user-defined strategies and dispatchers receive local tensors
  check_equal_tokens(*dispatcher_, mapping);
  const auto tokens = moe::to_tokens(given, mapping);
  const auto part = moe::local_part(tokens, mapping);
  const auto rows = part.reshape({-1, options_.hidden});
  if (mapping.bit_identical && parallel_) moe::check_tokens_in_order(*parallel_, mapping, rows.size(0));
  auto gate_input = rows;
  if (options_.router.jitter != 0 && is_training()) {
    gate_input =
        rows * moe::local_view(with_jitter(tokens, options_.router.jitter)).reshape(rows.sizes()).to(rows.dtype());
  }
  const auto bias = balancer_ ? moe::local_view(balancer_->bias) : at::Tensor();
  const auto routing = mapping.bit_identical ? moe::route_tokens(x, gate.weight, options_.router, mapping, bias)
                                             : route(gate_input, moe::replicated_parameter(gate.weight, mapping),
                                                     options_.router, mapping.layout, bias);
  if (balancer_ && is_training()) balancer_->count(routing);
  auto plan = dispatcher_->prepare(routing, mapping.layout);
  plan.apply_probs_before_experts = options_.score_before_experts;
  at::Tensor from_shared;  // computed while rows are in transit
  const auto sent = dispatcher_->dispatch(rows, plan, [&] { from_shared = run_shared(x, mapping); });
  if (!from_shared.defined()) from_shared = run_shared(x, mapping);  // for dispatchers that do not call it
  if (from_shared.defined()) from_shared = as_tokens(from_shared);
  const auto& load = routing.counts->local();  // cached together with the order
  stats_ = {routing.order ? load.clone() : load, plan.dropped};
  const auto made = run_experts_here(sent, plan, {mapping, routing, x.size(-2)});
  const auto base = shared_rows(from_shared, mapping, rows.sizes());
  keep.push_back(rows);
  auto y = moe::from_local_tokens(dispatcher_->combine(made, plan, base, keep).view(part.sizes()), mapping);
  if (from_shared.defined() && !base.defined()) y = from_shared + y;
  return {y, moe::from_partial_scalar(routing.loss, mapping)};
}

// Regular tokens differ between ranks, but an operator would treat them as replicated next to DTensors.
at::Tensor MixtureOfExperts::run_shared(const at::Tensor& x, const moe::TokenMapping& mapping) const {
  if (!shared) return {};
  const auto used = [&](const at::Tensor& w) { return mapping.mesh ? w : moe::replicated_parameter(w, mapping); };
  const ExpertWeights weights{used(shared->w1), used(shared->w2), used(shared->w3)};
  const auto activation = options_.experts.activation;
  const bool float8 = !mapping.mesh && nn::Float8Scope::current() && moe::fits_float8(x, weights);
  const auto y = float8 ? moe::run_float8_expert(x, weights, activation, moe::max_over({mapping.layout.ranks}))
                        : run_expert(x, weights, activation);
  return shared->gate.defined() ? at::sigmoid(at::linear(x, used(shared->gate))) * y : y;
}

namespace {

// The first of the `here` experts of this rank.
std::int64_t first_expert(std::int64_t here, const MixtureOfExperts::Parallel* parallel) {
  return parallel != nullptr && parallel->ep ? parallel->ep.rank() * here : 0;
}

}  // namespace

ExpertWeights MixtureOfExperts::local_experts(const Pass& pass) const {
  const auto split = parallel_ ? parallel_->split : std::vector<std::string>();
  const auto local = [&](const at::Tensor& w) { return moe::expert_parameter(w, split, pass.mapping); };
  ExpertWeights w{local(experts.w1), local(experts.w2), local(experts.w3)};
  for (const auto& parameter : {experts.w1, experts.w2, experts.w3}) {
    if (parameter.defined() && is_dtensor(parameter)) w.parameters.push_back(parameter);
  }
  if (at::GradMode::is_enabled()) {
    w.regather1 = moe::regather_function(experts.w1, split);
    w.regather2 = moe::regather_function(experts.w2, split);
    w.regather3 = moe::regather_function(experts.w3, split);
  }
  if (!options_.scale_expert_gradients) return w;
  const auto load = pass.routing.counts->on_device(pass.mapping.layout.ranks).sum(0);
  const auto here = w.w1.size(0), first = first_expert(here, parallel_.get());
  const auto mean = load.to(at::kDouble).mean();
  for (auto* each : {&w.w1, &w.w2, &w.w3}) {
    if (each->defined()) *each = scale_expert_gradients(*each, load.narrow(0, first, here), mean);
  }
  return w;
}

at::Tensor MixtureOfExperts::run_experts_here(const at::Tensor& rows, DispatchPlan& plan, const Pass& pass) {
  const auto weights = local_experts(pass);
  if (pass.mapping.bit_identical) {
    const auto here = weights.w1.size(0);
    at::Tensor blocks;
    if (at::GradMode::is_enabled()) {
      const auto all = moe::rows_of_blocks(pass.routing, plan, pass.sequence, pass.mapping.layout);
      blocks = all.narrow(0, first_expert(here, parallel_.get()), here);
    }
    const auto made = moe::run_packed_on_holders(rows, plan.host_rows(), weights, options_.experts.activation,
                                                 parallel_ ? parallel_->holders : pass.mapping.mesh, blocks);
    return moe::refuse_microbatches(made,
                                    moe::obstacle_to_microbatches(*this, *dispatcher_, pass.mapping.layout.total));
  }
  // DTensors count all writes. Regular tensors do not count writes through data(), so they are not cached. Training, of
  // which the forward pass of a recomputed segment has no gradients, keeps no second copy.
  const bool trains = moe::needs_graph(rows, weights.w1, weights.w2) || RecomputeGuard::current();
  if (trains) cache_->clear();
  auto* cache = trains || weights.parameters.empty() ? nullptr : cache_.get();
  const bool float8 = nn::Float8Scope::current() && moe::fits_float8(rows, weights);
  const auto run = [&](const at::Tensor& all, at::IntArrayRef counts) {
    if (!float8) return run_experts(all, counts, weights, options_.experts, cache);
    moe::count(&MoeCounters::float8_passes);
    const auto parts = parallel_ ? parallel_->etp : Communicator();
    return moe::run_float8_experts(all, counts, weights, options_.experts.activation,
                                   moe::max_over({pass.mapping.layout.ranks, parts}), moe::max_over({parts}));
  };
  const bool own_tokens = parallel_ && parallel_->etp && !pass.mapping.etp_ranks_share_tokens;
  if (own_tokens) return moe::run_over_etp(rows, plan.host_rows(), parallel_->etp, run);
  if (float8) return run(rows, plan.host_rows());
  const bool equal = !plan.rows.empty() && moe::all_equal(plan.rows);
  const bool grouped = options_.experts.backend == ExpertBackend::grouped ||
                       (!equal && plan.counts.defined() && moe::prefers_grouped(rows, weights, options_.experts));
  return grouped ? run_grouped_experts(rows, plan.counts, weights, options_.experts) : run(rows, plan.host_rows());
}

std::vector<MixtureOfExperts*> moe_layers(nn::Module& model) {
  std::vector<MixtureOfExperts*> layers;
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* layer = dynamic_cast<MixtureOfExperts*>(module)) layers.push_back(layer);
  }
  return layers;
}

NamedTensors expert_parameters(nn::Module& model) {
  NamedTensors all;
  for (const auto& [name, module] : model.named_modules()) {
    if (dynamic_cast<Experts*>(module) == nullptr && dynamic_cast<RoutedExperts*>(module) == nullptr) continue;
    const auto list = module->named_parameters(name);
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

void update_load_balancers(nn::Module& model, const Communicator& ranks) {
  std::vector<LoadBalancer*> balancers;
  for (auto* layer : moe_layers(model)) {
    if (layer->balancer() != nullptr) balancers.push_back(layer->balancer());
  }
  update_load_balancers(balancers, ranks);
}

MoeCountersScope::MoeCountersScope(MoeCounters& counters) : scope_(open_scope(&counters, Recompute::unchanged)) {}

}  // namespace dtensor
