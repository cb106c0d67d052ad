// Runs the reference layer of oracles/moe.json with the library's router, dispatcher and experts on any number of
// ranks, threads or MPI. A mismatch throws.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dtensor/moe.h"
#include "moe/experts/experts.h"
#include "moe/routing/router_parts.h"
#include "support/data.h"

namespace dtensor::oracle {

using nlohmann::json;

constexpr std::int64_t kTokens = 32, kHidden = 32, kExperts = 8, kTopK = 2, kSteps = 5;

inline const json& data() {
  static const json all = json::parse(std::ifstream(test::data_path("oracles/moe.json")));
  return all;
}

// float32(offset + scale * (double(h >> 40) / 2^23 - 1)), row-major; h is the finalizer of splitmix64.
inline at::Tensor fill(at::IntArrayRef sizes, std::uint64_t seed, double scale = 1, double offset = 0) {
  at::Tensor result = at::empty(sizes, at::kFloat);
  auto* out = result.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    std::uint64_t z = ((seed << 32) + static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    out[i] = static_cast<float>(offset + scale * (static_cast<double>(z >> 40) / 8388608.0 - 1.0));
  }
  return result;
}

struct Batch {
  at::Tensor x, target;
};
inline Batch batch(std::int64_t step) {
  return {fill({kTokens, kHidden}, 600 + step) + fill({kHidden}, 640) * 0.8f,
          fill({kTokens, kHidden}, 650 + step, 0.5)};
}

struct Parameters {
  at::Tensor gate;
  ExpertWeights experts, shared;
};
inline Parameters parameters(bool shared) {
  Parameters p{fill({kExperts, kHidden}, 501, 0.5),
               {fill({kExperts, kHidden, kHidden}, 502, 0.25), fill({kExperts, kHidden, kHidden}, 503, 0.25),
                fill({kExperts, kHidden, kHidden}, 504, 0.25)},
               {}};
  if (shared) p.shared = {fill({32, 32}, 505, .25), fill({32, 32}, 506, .25), fill({32, 32}, 507, .25)};
  return p;
}

inline void check_close(double got, double wanted, double scale, const std::string& what) {
  TORCH_CHECK(std::abs(got - wanted) <= 2e-5 * scale, what, " differs: got ", got, ", expected ", wanted);
}

inline void check_digest(const at::Tensor& t, const json& digest, const std::string& what) {
  const auto d = t.detach().flatten().to(at::kDouble);
  TORCH_CHECK(t.sizes() == digest["shape"].get<std::vector<std::int64_t>>(), what, " has unexpected sizes ", t.sizes());
  const double l2 = digest["l2"];
  check_close(d.norm().item<double>(), l2, l2, what + " norm");
  check_close(d.abs().max().item<double>(), digest["absmax"], l2, what + " absmax");
  check_close(d.sum().item<double>(), digest["sum"], l2 * 30, what + " sum");
  check_close((d * fill({d.numel()}, 4242).to(at::kDouble)).sum().item<double>(), digest["dot4242"], l2 * 10,
              what + " dot");
  for (int i = 0; i < 6; ++i) check_close(d[i].item<double>(), digest["head"][i], digest["absmax"], what + " head");
}

inline void check_full(const at::Tensor& t, const json& values, const std::string& what) {
  const auto wanted = at::tensor(values.get<std::vector<double>>()).view(t.sizes());
  const double worst = (t.detach().to(at::kDouble) - wanted).abs().max().item<double>();
  TORCH_CHECK(worst <= 2e-5 * wanted.abs().max().item<double>(), what, " differs from the recorded values by ", worst);
}

inline RouterOptions router_options(const json& config) {
  RouterOptions o{.experts = kExperts, .top_k = kTopK};
  o.normalize = config.value("norm", false);
  if (config.value("aux", false)) o.aux_loss = 0.01;
  if (config.value("force", "") == "round_robin") o.choice = RouterChoice::round_robin;
  return o;
}

// Dispatchers that support a variant.
inline std::vector<std::string> dispatchers_for(const json& config, int ranks) {
  if (config.value("capacity", false)) return {"capacity"};
  std::vector<std::string> names{"all_to_all", "all_gather", "capacity"};
  if (ranks == 1) names.push_back("local");
  if (config.value("force", "") == "round_robin") names.push_back("equal");
  return names;
}

inline std::shared_ptr<const Dispatcher> make_dispatcher(const std::string& name, const Communicator& ranks,
                                                         const json& config) {
  if (name == "local") return make_dispatcher(DispatchKind::all_to_all, {});
  if (name == "all_gather") return make_dispatcher(DispatchKind::all_gather, ranks);
  if (name == "equal") return make_dispatcher(DispatchKind::equal, ranks);
  if (name == "capacity") {
    return make_dispatcher(DispatchKind::capacity, ranks, {.factor = config.value("capacity", false) ? 1.25 : 0});
  }
  return make_dispatcher(DispatchKind::all_to_all, ranks);
}

inline at::Tensor summed(const Communicator& ranks, at::Tensor t) {
  t = t.clone();
  ranks.all_reduce(t, ReduceOp::sum).wait();
  return t;
}

inline at::Tensor gathered(const Communicator& ranks, const at::Tensor& t) {
  const at::NoGradGuard no_grad;
  return all_gather_rows(t, exchange_splits(std::vector<std::int64_t>(ranks.size(), t.size(0)), ranks), ranks);
}

// One rank's part of a variant.
struct Run {
  const Communicator& ranks;
  const json& variant;
  RouterOptions router = router_options(variant["config"]);
  Parameters p = parameters(variant["config"].value("shared", false));
  LoadBalancer balancer{kExperts, 0.02};
  TokenLayout layout{};

  at::Tensor mine(const at::Tensor& t) const { return t.tensor_split(ranks.size())[ranks.rank()].clone(); }
  std::vector<at::Tensor*> trained() {
    std::vector<at::Tensor*> list{&p.gate, &p.experts.w1, &p.experts.w2, &p.experts.w3};
    if (p.shared.w1.defined()) list.insert(list.end(), {&p.shared.w1, &p.shared.w2, &p.shared.w3});
    return list;
  }
};

inline void check_gradients(Run& run, const json& wanted, const std::string& what) {
  const std::vector<const char*> names{"Wg", "W1", "W2", "W3", "S1", "S2", "S3"};
  const auto trained = run.trained();
  for (std::size_t i = 0; i < trained.size(); ++i) {
    TORCH_CHECK(trained[i]->grad().defined(), what, ": no gradient of ", names[i]);
    const bool expert = i >= 1 && i <= 3;
    const auto grad = expert ? trained[i]->grad() : summed(run.ranks, trained[i]->grad());
    if (!expert) trained[i]->mutable_grad() = grad;
    check_digest(expert ? gathered(run.ranks, grad) : grad, wanted[names[i]], what + " " + names[i]);
  }
}

inline void run_step(Run& run, const Dispatcher& dispatcher, std::int64_t step, const std::string& what) {
  const json& config = run.variant["config"];
  const json& wanted = run.variant["steps"][step];
  auto [x, target] = batch(step);
  x = run.mine(x).requires_grad_();
  at::Tensor bias = run.balancer.bias;
  // Routes all tokens to experts 0 and 1 with a bias larger than any score.
  if (config.value("force", "") == "two_experts") bias = at::tensor({100.f, 50.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f});
  const auto routing = route(x, run.p.gate, run.router, run.layout, bias);
  run.balancer.count(routing);
  auto plan = dispatcher.prepare(routing, run.layout);
  const auto rows = dispatcher.dispatch(x, plan);
  ExpertOptions options{config.value("act", "") == "geglu" ? ExpertActivation::geglu : ExpertActivation::swiglu};
  auto y = dispatcher.combine(run_experts(rows, plan.rows, run.p.experts, options), plan);
  if (run.p.shared.w1.defined()) y = y + run_expert(x, run.p.shared, options.activation);
  auto loss = (y - run.mine(target)).square().sum() * (0.5 / (kTokens * kHidden));
  if (routing.loss.defined()) loss = loss + routing.loss;
  loss.backward();

  const auto counts = summed(run.ranks, routing.counts->local());
  TORCH_CHECK(at::equal(counts, at::tensor(wanted["tokens_per_expert"].get<std::vector<std::int64_t>>())), what,
              ": tokens per expert ", counts);
  const auto dropped = summed(run.ranks, at::tensor(plan.dropped)).item<std::int64_t>();
  TORCH_CHECK(dropped == static_cast<std::int64_t>(wanted["dropped_entries"].size()), what, ": dropped ", dropped);
  check_close(summed(run.ranks, loss.detach()).item<double>(), wanted["loss"], wanted["loss"], what + " loss");
  const auto all_y = gathered(run.ranks, y.detach()), all_dx = gathered(run.ranks, x.grad());
  check_digest(all_y, wanted["y"], what + " y");
  check_digest(all_dx, wanted["dx"], what + " dx");
  if (wanted.contains("full")) {
    check_full(all_y, wanted["full"]["y"], what + " y");
    check_full(all_dx, wanted["full"]["dx"], what + " dx");
  }
  check_gradients(run, wanted["weight_grads"], what);
  const at::NoGradGuard no_grad;
  for (auto* t : run.trained()) {
    t->sub_(t->grad(), 0.5);
    t->mutable_grad().reset();
  }
  if (config.value("bias_update", false)) update_load_balancers({&run.balancer}, run.ranks);
}

inline void check_variant(const Communicator& ranks, const std::string& name, const std::string& dispatcher) {
  Run run{ranks, data()["variants"][name]};
  run.layout.ranks = ranks;
  for (auto* w : {&run.p.experts.w1, &run.p.experts.w2, &run.p.experts.w3}) *w = run.mine(*w);
  for (auto* t : run.trained()) t->requires_grad_();
  const auto strategy = make_dispatcher(dispatcher, ranks, run.variant["config"]);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    run_step(run, *strategy, step, c10::str(name, " by ", dispatcher, " on ", ranks.size(), ", step ", step, ":"));
  }
  const auto bias = run.variant["final_bias"].get<std::vector<double>>();
  TORCH_CHECK(at::allclose(run.balancer.bias.to(at::kDouble), at::tensor(bias), 1e-6, 1e-6), name, ": bias ",
              run.balancer.bias);
}

inline void check_all_variants(const Communicator& ranks) {
  for (const auto& [name, variant] : data()["variants"].items()) {
    for (const auto& dispatcher : dispatchers_for(variant["config"], ranks.size()))
      check_variant(ranks, name, dispatcher);
  }
}

}  // namespace dtensor::oracle
