// Experts with every backend, their weight cache and gradients; the load balancer, router options and capacities.
#include "moe/experts/experts.h"
#include <gtest/gtest.h>
#include "dtensor/checkpoint_activations.h"
#include "moe/dispatch/permute.h"
#include "moe/routing/router_parts.h"
#include "small_layer.h"

namespace dtensor::test {
namespace {

at::Tensor full(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach(); }

// Packed and separate experts give the same result with every backend.
TEST(Experts, PackedAndSeparateAreEqualForEveryBackend) {
  for (const auto& rows : {Shape{2, 0, 5, 1}, Shape{3, 3, 3, 3}, Shape{0, 0, 0, 0}}) {
    for (const auto activation : {ExpertActivation::swiglu, ExpertActivation::geglu, ExpertActivation::glu,
                                  ExpertActivation::gelu, ExpertActivation::relu}) {
      Draw draw(9);
      const auto m = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
      const auto x = draw.normal({m, 8}, at::kFloat), cotangent = draw.normal({m, 8}, at::kFloat);
      const ExpertWeights w{draw.normal({4, 8, 8}, at::kFloat), draw.normal({4, 8, 8}, at::kFloat),
                            is_gated(activation) ? draw.normal({4, 8, 8}, at::kFloat) : at::Tensor()};
      const auto gradients = [&](ExpertBackend backend, bool packed) {
        auto leaf = x.clone().requires_grad_();
        ExpertWeights p{w.w1.clone().requires_grad_(), w.w2.clone().requires_grad_(),
                        w.w3.defined() ? w.w3.clone().requires_grad_() : at::Tensor()};
        at::Tensor y;
        if (packed) {
          y = run_experts(leaf, rows, p, {activation, backend});
        } else {
          std::vector<ExpertWeights> list;
          for (int e = 0; e < 4; ++e) list.push_back({p.w1[e], p.w2[e], p.w3.defined() ? p.w3[e] : at::Tensor()});
          y = run_experts(leaf, rows, list, {activation, backend});
        }
        (y * cotangent).sum().backward();
        std::vector<at::Tensor> all{y.detach(), leaf.grad(), p.w1.grad(), p.w2.grad()};
        if (p.w3.defined()) all.push_back(p.w3.grad());
        return all;
      };
      const auto wanted = gradients(ExpertBackend::loop, false);
      std::vector<ExpertBackend> backends{ExpertBackend::automatic, ExpertBackend::loop};
      if (m > 0) backends.push_back(ExpertBackend::grouped);
      if (rows[0] == rows[1]) backends.push_back(ExpertBackend::batched);
      for (const auto backend : backends) {
        for (const bool packed : {true, false}) {
          const auto got = gradients(backend, packed);
          for (std::size_t i = 0; i < wanted.size(); ++i) {
            expect_close(got[i], wanted[i],
                         c10::str("backend ", static_cast<int>(backend), " packed ", packed, " result ", i), 2e-5);
          }
        }
      }
    }
  }
}

TEST(Experts, AlignedGroupsPadRowsWithZeros) {
  for (const auto& rows : {Shape{3, 0, 4, 1}, Shape{0, 0}, Shape{8}, Shape{0, 5}}) {
    const auto counts = at::tensor(rows, at::kLong);
    const auto m = counts.sum().item<std::int64_t>();
    const auto x = Draw(3).normal({m, 2}).abs() + 1;
    EXPECT_TRUE(align_groups(counts, m, 1).pad(x).is_same(x));
    const auto groups = align_groups(counts, m, 4);
    const auto spread = groups.pad(x);
    EXPECT_EQ(spread.size(0) % 4, 0);
    EXPECT_TRUE(at::equal(groups.unpad(spread), x));
    std::int64_t first = 0, begin = 0;
    for (std::size_t e = 0; e < rows.size(); ++e) {
      const auto end = groups.ends[static_cast<std::int64_t>(e)].item<std::int64_t>();
      EXPECT_EQ(end % 4, 0);
      EXPECT_TRUE(at::equal(spread.narrow(0, begin, rows[e]), x.narrow(0, first, rows[e])));
      EXPECT_EQ(spread.narrow(0, begin + rows[e], end - begin - rows[e]).sum().item<double>(), 0);
      first += rows[e];
      begin = end;
    }
  }
}

TEST(Experts, EveryFloatingDtypeRunsOnTheCpu) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    auto options = small_options(dtype);
    options.shared_ffn = 8;
    MixtureOfExperts layer(options), exact(small_options());
    auto x = Draw(1).normal({6, 8}, dtype).requires_grad_();
    const auto y = layer.forward(x);
    EXPECT_EQ(y.scalar_type(), dtype);
    y.sum().backward();
    for (auto& p : layer.parameters()) EXPECT_EQ(p.grad().scalar_type(), dtype);
  }
}

TEST(Experts, WeightCacheIsKeyedByIdentityAndVersion) {
  Draw draw(3);
  ExpertWeights w{draw.normal({2, 6, 4}), draw.normal({2, 4, 6}), draw.normal({2, 6, 4})};
  const auto x = draw.normal({6, 4});
  const at::NoGradGuard no_grad;
  ExpertWeightCache cache;
  const auto run = [&] {
    ExpertWeightCache fresh;
    const auto cached = run_experts(x, {3, 3}, w, {}, &cache);
    EXPECT_TRUE(at::equal(cached, run_experts(x, {3, 3}, w, {}, &fresh)));
    expect_close(cached, run_experts(x, {3, 3}, w), "without a cache");
  };
  run();
  run();
  EXPECT_EQ(cache.hits(), 1u);
  w.w2.mul_(2);
  run();
  EXPECT_EQ(cache.misses(), 2u);
  w.w3 = w.w3.clone();
  run();
  run();
  EXPECT_EQ(cache.misses(), 3u);
  EXPECT_EQ(cache.hits(), 2u);
  w.w1.set_data(w.w1 * 3);  // set_data keeps the version
  run();
  EXPECT_EQ(cache.misses(), 4u);
}

TEST(AddUnpermutedTokens, WritesInPlaceOnlyIfTheBaseIsNotAliased) {
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    Draw draw(5);
    const auto x = draw.normal({4, 6}, dtype), rows = draw.normal({8, 6}, dtype);
    const auto position = at::randperm(8, at::kLong).view({4, 2});
    const auto weight = draw.normal({4, 2}, dtype == at::kDouble ? at::kDouble : at::kFloat);
    const at::NoGradGuard no_grad;
    const auto base = draw.normal({4, 6}, dtype);
    const auto wanted = base + unpermute_tokens(rows, position, weight);
    const auto own = base.clone();
    const auto result = add_unpermuted_tokens(own, rows, position, weight, {x});
    EXPECT_TRUE(result.is_same(own));
    EXPECT_TRUE(at::equal(result, wanted));
    const auto view = x.flatten().narrow(0, 6, 12).view({2, 6});  // a view of x, which must not change, with an offset
    const auto before = x.clone();
    add_unpermuted_tokens(view, rows, position.narrow(0, 0, 2), weight.narrow(0, 0, 2), {x});
    add_unpermuted_tokens(x, rows, position, weight, {x});
    EXPECT_TRUE(at::equal(x, before));
  }
  auto base = at::zeros({2, 3}).requires_grad_();
  const auto y = add_unpermuted_tokens(base, at::ones({2, 3}), at::tensor({0, 1}, at::kLong).view({2, 1}), {}, {});
  EXPECT_FALSE(y.is_same(base));
  EXPECT_TRUE(y.requires_grad());
}

TEST(Experts, GatheredWeightsAreNotKeptForBackward) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2, 1}, {"edp", "ep"});
    MixtureOfExperts layer(small_options());
    fill(layer, 3);
    apply_expert_parallel(layer, mesh);
    const auto x = distribute_tensor(Draw(1).normal({6, 8}), mesh, {Shard(0), Replicate()});
    layer.forward(x);
    at::Tensor y;
    const auto count = [](const std::vector<std::string>& names) {
      return std::count_if(names.begin(), names.end(), [](const auto& n) { return n == "all_gather edp"; });
    };
    EXPECT_EQ(count(collectives_of([&] { y = layer.forward(x); })), 3);
    EXPECT_GE(count(collectives_of([&] { y.sum().backward(); })), 1);
    auto z = layer.forward(x);
    {
      const at::NoGradGuard no_grad;
      layer.experts.w2.mul_(2);
    }
    EXPECT_THROW(z.sum().backward(), std::exception);
  });
}

TEST(Experts, GradientScaleChangesWeightGradientsOnly) {
  for (const int ranks : {1, 2}) {
    run_local(ranks, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {ranks}, {"ep"});
      std::vector<at::Tensor> y, dx, dw, load;
      for (const bool scaled : {false, true}) {
        auto options = small_options();
        options.scale_expert_gradients = scaled;
        MixtureOfExperts layer(options);
        fill(layer, 6);
        apply_expert_parallel(layer, mesh);
        const auto x = distribute_tensor(Draw(8).normal({10, 8}), mesh, {Shard(0)}).requires_grad_();
        const auto out = layer.forward(x);
        out.square().sum().backward();
        y.push_back(DTensor(out.detach()).full_tensor());
        dx.push_back(DTensor(x.grad()).full_tensor());
        const auto grad = layer.experts.w1.grad();
        dw.push_back(is_dtensor(grad) ? DTensor(grad).full_tensor() : grad);
        auto all = layer.stats().load.clone();
        world.all_reduce(all, ReduceOp::sum).wait();
        load.push_back(all.to(at::kDouble));
      }
      EXPECT_TRUE(at::equal(y[0], y[1]));
      EXPECT_TRUE(at::equal(dx[0], dx[1]));
      const auto factor = at::where(load[0] > 0, load[0].mean() / load[0], 1.0);
      expect_close(dw[1], dw[0] * factor.view({-1, 1, 1}), "scaled");
    });
  }
}

// Two microbatches on two ranks, with and without recomputation in backward.
TEST(LoadBalancer, CountsOnceUnderRecomputationAndMicrobatches) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    auto options = small_options();
    options.balance_rate = 0.5;
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool again : {false, true}) {
      MixtureOfExperts layer(options);
      fill(layer, 2);
      apply_expert_parallel(layer, mesh);
      for (const std::uint64_t micro : {4, 5}) {
        const auto x = distribute_tensor(Draw(micro).normal({6, 8}), mesh, {Shard(0)}).requires_grad_();
        const auto run = [&](const at::Tensor& input) { return layer.forward(input); };
        (again ? checkpoint(run, x) : run(x)).square().sum().backward();
      }
      gradients.emplace_back();
      for (const auto& p : layer.parameters()) gradients.back().push_back(full(p.grad()));
      layer.eval();
      layer.forward(distribute_tensor(Draw(4).normal({6, 8}), mesh, {Shard(0)}));
      EXPECT_EQ(layer.balancer()->counts.sum().item<std::int64_t>(), 2 * 3 * 2);
      auto load = layer.balancer()->counts.clone();
      world.all_reduce(load, ReduceOp::sum).wait();
      const auto mean = load.to(at::kFloat).mean();
      update_load_balancers(layer, world);
      EXPECT_TRUE(at::equal(layer.balancer()->bias, at::sign(mean - load) * 0.5));
      EXPECT_EQ(layer.balancer()->counts.sum().item<std::int64_t>(), 0);
    }
    for (std::size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << "gradient " << i;
    }
  });
}

TEST(Router, JitterAndItsNoiseDoNotDependOnTheLayout) {
  auto options = small_options();
  options.router.jitter = 0.5;
  std::vector<at::Tensor> results;
  for (const int ranks : {1, 2, 4}) {
    run_local(ranks, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {ranks}, {"ep"});
      manual_seed(mesh, 3);
      MixtureOfExperts layer(options);
      fill(layer, 1);
      apply_expert_parallel(layer, mesh);
      const auto y = layer.forward(distribute_tensor(Draw(5).normal({7, 8}), mesh, {Shard(0)}));
      const auto all = DTensor(y.detach()).full_tensor();
      if (world.rank() == 0) results.push_back(all);
    });
  }
  for (const auto& y : results) expect_close(y, results[0], "jitter");
}

TEST(Router, GroupsLimitTheChoice) {
  RouterOptions o{.experts = 6, .top_k = 2, .groups = 3, .top_groups = 1};
  const auto x = Draw(3).normal({20, 5}), gate = Draw(4).normal({6, 5});
  const auto routing = route(x, gate, o);
  EXPECT_TRUE(at::equal(routing.experts.select(1, 0).div(2, "floor"), routing.experts.select(1, 1).div(2, "floor")));
  const auto scores = routing.scores.view({20, 3, 2}).sum(2);
  EXPECT_TRUE(at::equal(std::get<1>(scores.max(1)), routing.experts.select(1, 0).div(2, "floor")));
}

TEST(Capacity, ProbabilityPolicyKeepsTheLargestWeights) {
  RouterOptions o{.experts = 3, .top_k = 1};
  const auto x = Draw(6).normal({12, 4}), gate = Draw(7).normal({3, 4});
  auto routing = route(x, gate, o);
  const auto before = routing.experts.flatten();
  const auto weights = routing.weights.flatten();
  const auto dropped = drop_over_capacity(routing, {}, {.factor = 0.75, .drop = CapacityOptions::Drop::probability});
  const auto after = routing.experts.flatten();
  EXPECT_EQ((after == 3).sum().item<std::int64_t>(), dropped);
  for (std::int64_t e = 0; e < 3; ++e) {
    const auto kept = weights.masked_select(after == e),
               out = weights.masked_select((before == e).logical_and(after == 3));
    EXPECT_LE(kept.numel(), 3);
    if (out.numel() > 0) {
      EXPECT_EQ(kept.numel(), 3);
      EXPECT_GE(kept.min().item<double>(), out.max().item<double>());
    }
  }
}

}  // namespace
}  // namespace dtensor::test
