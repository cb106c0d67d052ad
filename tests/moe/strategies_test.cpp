// Routing strategies and dispatchers as objects, their caches, and counters of saved work.
#include "moe/routing/router_parts.h"
#include "moe/small_layer.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

at::Tensor tokens(std::int64_t count, at::ScalarType dtype = at::kDouble) { return Draw(7).normal({count, 8}, dtype); }

struct Pass {
  MoeCounters counters;
  at::Tensor y;
};

Pass count_pass(MixtureOfExperts& layer, const at::Tensor& x) {
  Pass pass;
  const MoeCountersScope counting(pass.counters);
  pass.y = layer.forward(x);
  return pass;
}

// Runs `body` on `ranks` ranks that share the experts; x is split over them.
void on_ranks(int ranks, const MoeOptions& options,
              const std::function<void(MixtureOfExperts&, const std::function<at::Tensor(const at::Tensor&)>&)>& body) {
  run_local(ranks, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {ranks}, {"ep"});
    MixtureOfExperts layer(options);
    fill(layer, 3);
    apply_expert_parallel(layer, mesh);
    nn::distribute(layer.named_parameters(), mesh, [](const auto& name, const at::Tensor& t) {
      return name.rfind("experts.", 0) == 0 && is_dtensor(t) ? DTensor(t).placements() : Placements{Replicate()};
    });
    body(layer, [&](const at::Tensor& x) -> at::Tensor { return distribute_tensor(x, mesh, {Shard(0)}); });
  });
}

TEST(Strategies, EntriesAreCountedAndSortedOncePerPass) {
  for (const auto kind : {DispatchKind::all_to_all, DispatchKind::capacity}) {
    for (const int ranks : {1, 2}) {
      on_ranks(ranks, small_options(), [&](auto& layer, const auto& place) {
        layer.set_dispatch(kind);
        for (int pass = 0; pass < 2; ++pass) {
          const auto c = count_pass(layer, place(tokens(8))).counters;
          EXPECT_EQ(c.passes, 1);
          EXPECT_EQ(c.histograms, 1);
          EXPECT_EQ(c.sorts, 1);
        }
      });
    }
  }
}

TEST(Strategies, RoundRobinCachesRoutingAndPlanPerSize) {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  for (const bool equal : {false, true}) {
    on_ranks(2, options, [&](auto& layer, const auto& place) {
      layer.set_dispatch(equal ? DispatchKind::equal : DispatchKind::all_to_all);
      for (const std::int64_t count : {8, 12, 8, 12, 12}) {
        const bool first = layer.stats().load.defined() ? false : true;
        const auto c = count_pass(layer, place(tokens(count))).counters;
        if (first) {
          EXPECT_EQ(c.cached_routings, 0);
        }
        EXPECT_EQ(c.histograms, c.cached_routings == 1 ? 0 : 1);
        EXPECT_EQ(c.sorts, c.histograms);
        EXPECT_EQ(c.equal_exchanges, equal ? 1 : 0);
      }
      const auto again = count_pass(layer, place(tokens(12))).counters;  // the size of the previous pass
      EXPECT_EQ(again.cached_routings, 1);
      EXPECT_EQ(again.cached_plans, equal ? 1 : 0);
    });
  }
}

// A cache filled in inference mode is valid in training, and results equal those without a cache.
TEST(Strategies, CachesOfInferenceAreValidInTraining) {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  on_ranks(2, options, [&](auto& layer, const auto& place) {
    layer.set_dispatch(DispatchKind::equal);
    at::Tensor seen;
    {
      const c10::InferenceMode inference;
      seen = DTensor(layer.forward(place(tokens(8)))).to_local().clone();
    }
    const auto y = layer.forward(place(tokens(8)));
    y.square().sum().backward();
    expect_close(DTensor(y.detach()).to_local(), seen, "the same output");
    EXPECT_TRUE(layer.gate.weight.grad().defined());
  });
}

// A user-defined strategy: token t of the batch goes to experts 3 t and 3 t + 1 for any scores.
class ByNumber final : public RoutingStrategy {
 public:
  Choice choose(const at::Tensor& scores, const RouterOptions& o, const TokenLayout& layout,
                const at::Tensor&) const override {
    const auto first = at::arange(layout.first, layout.first + scores.size(0), at::kLong) * 3;
    return {.experts = at::stack({first, first + 1}, 1).remainder(o.experts)};
  }
  const char* name() const override { return "ByNumber"; }
};

class Wrong final : public RoutingStrategy {
 public:
  Choice choose(const at::Tensor& scores, const RouterOptions&, const TokenLayout&, const at::Tensor&) const override {
    return {.experts = at::zeros({scores.size(0) + 1, 1}, at::kLong)};
  }
  const char* name() const override { return "Wrong"; }
};

TEST(Strategies, UserDefinedStrategyEqualsOneDevice) {
  auto options = small_options();
  options.router.strategy = std::make_shared<ByNumber>();
  MixtureOfExperts regular(options);
  fill(regular, 3);
  auto x = tokens(8);
  RouterOptions router = options.router;
  TokenLayout layout;
  layout.first = 0, layout.total = 8;
  const auto routing = route(x, regular.gate.weight, router, layout);
  EXPECT_TRUE(
      at::equal(routing.experts.flatten(), at::tensor({0, 1, 3, 0, 2, 3, 1, 2, 0, 1, 3, 0, 2, 3, 1, 2}, at::kLong)));
  at::Tensor wanted;
  on_ranks(1, options,
           [&](auto& layer, const auto& place) { wanted = DTensor(layer.forward(place(x))).full_tensor().detach(); });
  for (const auto kind : {DispatchKind::all_to_all, DispatchKind::all_gather, DispatchKind::capacity}) {
    on_ranks(2, options, [&](auto& layer, const auto& place) {
      layer.set_dispatch(kind);
      expect_close(DTensor(layer.forward(place(x)).detach()).full_tensor(), wanted, "own strategy");
    });
  }
  options.router.strategy = std::make_shared<Wrong>();
  MixtureOfExperts wrong(options);
  EXPECT_NE(error_of([&] { wrong.forward(x); }).find("Wrong must return int64 [tokens, choices]"), std::string::npos);
}

// A user-defined dispatcher that counts calls and forwards them.
class Counting final : public Dispatcher {
 public:
  Counting(const Communicator& ranks, std::atomic<int>& calls)
      : Dispatcher(ranks), inner_(make_dispatcher(DispatchKind::all_to_all, ranks)), calls_(calls) {}
  DispatchPlan prepare(const Routing& routing, const TokenLayout& layout) const override {
    ++calls_;
    return inner_->prepare(routing, layout);
  }
  at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const std::function<void()>& overlap_fn) const override {
    return inner_->dispatch(x, plan, overlap_fn);
  }
  at::Tensor combine(const at::Tensor& rows, const DispatchPlan& plan, const at::Tensor& base,
                     at::TensorList keep) const override {
    return inner_->combine(rows, plan, base, keep);
  }
  const char* name() const override { return "Counting"; }

 private:
  std::shared_ptr<const Dispatcher> inner_;
  std::atomic<int>& calls_;
};

TEST(Strategies, PlanOfAnotherDispatcherIsRefused) {
  const auto x = tokens(8);
  RouterOptions router;
  router.experts = 4;
  const auto routing = route(x, at::ones({4, x.size(1)}, x.options()), router, {});
  const auto rows = make_dispatcher(DispatchKind::all_to_all, {}),
             gathered = make_dispatcher(DispatchKind::all_gather, {});
  auto plan = gathered->prepare(routing, {}), none = DispatchPlan();
  for (auto* given : {&plan, &none}) {
    EXPECT_NE(error_of([&] { rows->dispatch(x, *given); }).find("was not prepared by a dispatcher of this kind"),
              std::string::npos);
  }
  auto other = rows->prepare(routing, {});
  EXPECT_EQ(error_of([&] { rows->dispatch(x, other); }), "no error");
}

TEST(Strategies, UserDefinedDispatcherGetsTheRanksOfTheExperts) {
  std::atomic<int> calls = 0;
  on_ranks(2, small_options(), [&](auto& layer, const auto& place) {
    const auto wanted = layer.forward(place(tokens(8)));
    int ranks = 0;
    layer.set_dispatcher([&](const Communicator& c) {
      ranks = c.size();
      return std::make_shared<Counting>(c, calls);
    });
    EXPECT_EQ(ranks, 2);
    EXPECT_TRUE(
        at::equal(DTensor(layer.forward(place(tokens(8))).detach()).to_local(), DTensor(wanted.detach()).to_local()));
  });
  EXPECT_EQ(calls, 2);
}

// Without gradients, a shared expert's result is accumulated in place, also on DTensors, for tokens sharded by the
// caller or for the dispatch.
TEST(Strategies, ResultsAreAddedInPlaceOnDTensors) {
  auto options = small_options();
  options.shared_ffn = 8;
  options.experts.backend = ExpertBackend::loop;  // packed weights, used without gradients, round differently
  run_local(4, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"shard", "tp"});
    MixtureOfExperts layer(options);
    fill(layer, 3);
    apply_expert_parallel(layer, mesh.view({4}, {"ep"}));
    const auto full = tokens(8);
    const auto x = distribute_tensor(full, mesh, {Shard(0), Replicate()});
    const auto recorded = count_pass(layer, x);
    EXPECT_EQ(recorded.counters.in_place_combines, 0);
    const at::NoGradGuard no_grad;
    const auto quick = count_pass(layer, x);
    EXPECT_EQ(quick.counters.in_place_combines, 1);
    EXPECT_TRUE(at::equal(DTensor(quick.y).full_tensor(), DTensor(recorded.y.detach()).full_tensor()));
    EXPECT_TRUE(at::equal(x.full_tensor(), full));
  });
}

MoeOptions one_block(at::ScalarType dtype, std::int64_t block) {
  MoeOptions o;
  o.hidden = 256, o.ffn = 128;
  o.router.experts = 8;
  o.router.normalize = true;
  o.experts = {.activation = ExpertActivation::geglu, .backend = ExpertBackend::grouped, .block = block};
  o.tensor = dtype;
  return o;
}

struct Result {
  at::Tensor y, dx;
  std::vector<at::Tensor> gradients;
};

Result run_block(MoeOptions options, const at::Tensor& x, int ranks, std::int64_t aligned_rows) {
  Result result;
  on_ranks(ranks, options, [&](auto& layer, const auto& place) {
    const auto input = place(x).requires_grad_();
    const auto pass = count_pass(layer, input);
    if (aligned_rows >= 0) {
      EXPECT_EQ(pass.counters.aligned_rows, aligned_rows);
    }
    pass.y.square().sum().backward();
    Result mine{DTensor(pass.y.detach()).full_tensor(), DTensor(input.grad()).full_tensor(), {}};
    for (const auto& p : layer.parameters()) mine.gradients.push_back(DTensor(p.grad()).full_tensor());
    if (DTensor(input).mesh().world().rank() == 0) result = mine;
  });
  return result;
}

void expect_near(const at::Tensor& got, const at::Tensor& wanted, double bound, const std::string& what) {
  EXPECT_LE((got - wanted).to(at::kDouble).norm().item<double>(),
            bound * (1e-9 + wanted.to(at::kDouble).norm().item<double>()))
      << what;
}

// Hidden size 256 and an ffn of exactly one block: most experts have none of the 6 tokens, and none has a full block.
// Groups are padded without counts on the host, and results equal a loop over experts.
TEST(AlignedExperts, OneBlockOfFfnEqualsTheLoopOverExperts) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto x = Draw(2).normal({6, 256}, dtype);
    auto loop = one_block(dtype, 0);
    loop.experts.backend = ExpertBackend::loop;
    const auto wanted = run_block(loop, x, 1, 0);
    for (const std::int64_t block : {0, 3, 16, 128}) {
      const auto a = std::max<std::int64_t>(block, 1);
      const auto bound = (6 * 2 + 8 * (a - 1) + a - 1) / a * a;  // entries plus the maximum padding
      for (const int ranks : {1, 2}) {
        const auto got = run_block(one_block(dtype, block), x, ranks, ranks == 1 ? bound : -1);
        const auto what = c10::str(dtype, " block ", block, " ranks ", ranks);
        const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
        expect_near(got.y, wanted.y, tolerance, what + " y");
        expect_near(got.dx, wanted.dx, tolerance, what + " dx");
        for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
          expect_near(got.gradients[i], wanted.gradients[i], tolerance, c10::str(what, " gradient ", i));
        }
      }
    }
  }
}

TEST(EqualExchange, UnevenTokensAreOneError) {
  auto options = small_options();
  options.router.choice = RouterChoice::round_robin;
  for (const bool regular : {false, true}) {
    std::array<std::string, 2> errors;
    try {
      run_local(2, [&](Communicator world) {
        const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
        MixtureOfExperts layer(options);
        fill(layer, 3);
        apply_expert_parallel(layer, mesh);
        layer.set_dispatch(DispatchKind::equal);
        const auto mine = tokens(world.rank() == 0 ? 5 : 2);
        const auto x = regular ? mine : at::Tensor(distribute_tensor(tokens(7), mesh, {Shard(0)}));
        try {
          layer.forward(x);
        } catch (const c10::Error& error) {
          errors[world.rank()] = error.what_without_backtrace();
        } catch (const CommError& error) {
          errors[world.rank()] = error.what();
        }
      });
    } catch (const std::exception&) {  // run_local rethrows if ranks disagree
    }
    for (const auto& error : errors)
      EXPECT_NE(error.find("EqualAllToAll"), std::string::npos) << regular << " " << error;
    for (const auto& error : errors) EXPECT_NE(error.find("use DispatchKind::all_to_all"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace dtensor::test
