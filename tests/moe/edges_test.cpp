// Where layers of this kind break: experts and ranks without tokens, weights that are Inf, dispatches that should be
// equal bit for bit, backends, caches, recomputation, and the order of collectives.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include <torch/csrc/autograd/custom_function.h>

#include "dtensor/dtensor.h"
#include "dtensor/moe.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

MoeOptions small_options(at::ScalarType dtype = at::kDouble) {
  MoeOptions o;
  o.hidden = 8;
  o.ffn = 8;
  o.router.experts = 4;
  o.router.top_k = 2;
  o.router.normalise = true;
  o.tensor = dtype;
  return o;
}

void fill(nn::Module& layer, std::uint64_t seed) {
  Draw draw(seed);
  for (const auto& [name, p] : layer.named_parameters()) {
    *p = draw.normal(p->sizes().vec(), p->scalar_type()).mul_(0.5).requires_grad_();
  }
}

// A gate that sends every token with a positive first feature to expert 0 (then 1), whatever else it holds.
void send_all_to_first(MixtureOfExperts& layer) {
  const at::NoGradGuard no_grad;
  auto gate = at::zeros_like(layer.gate.weight);
  gate.select(0, 0).select(0, 0).fill_(5);
  gate.select(0, 1).select(0, 0).fill_(2);
  layer.gate.weight.copy_(gate);
}

TEST(MoeEdges, AnUnusedExpertMayHoldInfAndGetsAZeroGradient) {
  for (const auto kind : {DispatchKind::all_to_all, DispatchKind::all_gather, DispatchKind::capacity}) {
    run_local(4, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {4}, {"ep"});
      MixtureOfExperts layer(small_options());
      fill(layer, 3);
      send_all_to_first(layer);
      {
        const at::NoGradGuard no_grad;
        for (auto* w : {&layer.experts.w1, &layer.experts.w2, &layer.experts.w3}) {
          w->narrow(0, 2, 2).fill_(std::numeric_limits<double>::infinity());
        }
      }
      apply_expert_parallel(layer, mesh);
      layer.set_dispatch(kind, {.factor = 1.0});
      auto x = distribute_tensor(Draw(1).normal({6, 8}).abs(), mesh, {Shard(0)}).requires_grad_();
      const auto y = layer.forward(x);
      y.square().mean().backward();
      EXPECT_TRUE(DTensor(y.detach()).full_tensor().isfinite().all().item<bool>());
      EXPECT_TRUE(DTensor(x.grad()).full_tensor().isfinite().all().item<bool>());
      for (auto* w : {&layer.experts.w1, &layer.experts.w2, &layer.experts.w3}) {
        ASSERT_TRUE(w->grad().defined());
        const auto grad = DTensor(w->grad()).full_tensor();
        EXPECT_TRUE(grad.isfinite().all().item<bool>());
        EXPECT_EQ(grad.narrow(0, 2, 2).abs().max().item<double>(), 0);
        EXPECT_GT(grad.select(0, 0).abs().max().item<double>(), 0);
      }
    });
  }
}

TEST(MoeEdges, ABatchWithoutTokensGivesZeroGradients) {
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    auto options = small_options();
    options.router.aux_loss = options.router.z_loss = 0;
    MixtureOfExperts layer(options);
    apply_expert_parallel(layer, mesh);
    const auto x = distribute_tensor(at::zeros({0, 8}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
    layer.forward(x).sum().backward();
    for (auto& p : layer.parameters()) EXPECT_EQ(p.grad().abs().sum().item<double>(), 0);
  });
}

// What each rank does between ranks, in order.
std::vector<std::string> collectives_of(const std::function<void()>& fn) {
  std::vector<std::string> names;
  const EventListener listener([&](const Event& event) {
    if (event.kind == Event::Kind::collective) names.push_back(event.name + " " + event.axis);
  });
  fn();
  return names;
}

TEST(MoeEdges, TheSequenceOfCollectivesDoesNotDependOnTheData) {
  std::vector<std::vector<std::string>> seen;
  std::mutex mutex;
  for (const std::uint64_t seed : {1, 2, 3}) {
    run_local(4, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {4}, {"ep"});
      auto options = small_options();
      options.router.aux_loss = 0.1;
      MixtureOfExperts layer(options);
      fill(layer, seed);
      if (seed == 2) send_all_to_first(layer);
      apply_expert_parallel(layer, mesh);
      const auto x = distribute_tensor(Draw(seed).normal({seed == 3 ? 1 : 9, 8}), mesh, {Shard(0)}).requires_grad_();
      layer.forward(x);  // communicators are made
      const auto names = collectives_of([&] {
        const auto out = layer.run(x);
        (out.y.sum() + out.loss).backward();
      });
      const std::lock_guard lock(mutex);
      seen.push_back(names);
    });
  }
  for (const auto& names : seen) EXPECT_EQ(names, seen[0]);
  EXPECT_GE(seen[0].size(), 5u);
}

TEST(MoeEdges, TheEqualPathIsTheGeneralPathBitForBit) {
  for (const std::int64_t tokens : {8, 12, 3, 1}) {  // of each rank: without and with padding
    for (const auto backend : {ExpertBackend::automatic, ExpertBackend::loop}) {
      run_local(2, [&](Communicator world) {
        const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
        std::vector<std::vector<at::Tensor>> results;
        std::vector<std::vector<std::string>> collectives;
        for (const auto kind : {DispatchKind::all_to_all, DispatchKind::equal}) {
          auto options = small_options(at::kFloat);
          options.router.choice = RouterChoice::round_robin;
          options.experts.backend = backend;
          MixtureOfExperts layer(options);
          fill(layer, 5);
          apply_expert_parallel(layer, mesh);
          layer.set_dispatch(kind);
          const auto x =
              distribute_tensor(Draw(7).normal({2 * tokens, 8}, at::kFloat), mesh, {Shard(0)}).requires_grad_();
          at::Tensor y;
          layer.forward(x);
          collectives.push_back(collectives_of([&] { y = layer.forward(x); }));
          y.square().sum().backward();
          std::vector<at::Tensor> all{DTensor(y.detach()).to_local(), DTensor(x.grad()).to_local()};
          for (auto& p : layer.parameters()) {
            all.push_back(is_dtensor(p.grad()) ? DTensor(p.grad()).full_tensor() : p.grad());
          }
          results.push_back(all);
        }
        for (std::size_t i = 0; i < results[0].size(); ++i) {
          EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << tokens << " tokens, result " << i;
        }
        EXPECT_EQ(collectives[1].size() + 1, collectives[0].size());  // no counts
      });
    }
  }
}

TEST(MoeEdges, TokensThatAreNotInTurnAreRefusedByTheEqualPath) {
  MixtureOfExperts layer(small_options());
  layer.set_dispatch(DispatchKind::equal);
  EXPECT_THROW(layer.forward(at::zeros({4, 8}, at::kDouble)), c10::Error);
}

TEST(MoeEdges, ExpertsThatDoNotDivideAreAnErrorWithBothNumbers) {
  try {
    run_local(3, [](Communicator world) {
      MixtureOfExperts layer(small_options());
      apply_expert_parallel(layer, init_device_mesh(world, at::kCPU, {3}, {"ep"}));
    });
    FAIL() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("4 experts on 3 ranks"), std::string::npos) << e.what();
  }
}

TEST(MoeEdges, OneRankChangesNothing) {
  run_local(1, [](Communicator world) {
    MixtureOfExperts layer(small_options());
    const auto before = layer.experts.w1;
    EXPECT_EQ(apply_expert_parallel(layer, init_device_mesh(world, at::kCPU, {1}, {"ep"})), 1);
    EXPECT_TRUE(layer.experts.w1.is_same(before));
  });
}

// Plain tokens of each rank, as in a hand-written program.
TEST(MoeEdges, PlainTokensOfEachRankAreTheBatch) {
  auto options = small_options();
  options.router.aux_loss = 0.2;
  options.router.z_loss = 0.1;
  const auto x = Draw(2).normal({10, 8});
  const auto run = [&](MixtureOfExperts& layer, const at::Tensor& tokens) {
    const auto out = layer.run(tokens);
    (out.y.square().sum() + out.loss).backward();
    return std::make_pair(out.y.detach(), out.loss.detach());
  };
  MixtureOfExperts one(options);
  fill(one, 4);
  const auto [y, loss] = run(one, x);
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    MixtureOfExperts layer(options);
    fill(layer, 4);
    layer.gate.weight = distribute_tensor(layer.gate.weight.detach(), mesh, {Replicate()}).requires_grad_();
    apply_expert_parallel(layer, mesh);
    const auto mine = world.rank() == 0 ? x.narrow(0, 0, 3) : x.narrow(0, 3, 7);
    auto [my_y, my_loss] = run(layer, mine);
    expect_close(my_y, world.rank() == 0 ? y.narrow(0, 0, 3) : y.narrow(0, 3, 7), "y");
    world.all_reduce(my_loss, ReduceOp::sum).wait();
    expect_close(my_loss, loss, "loss");
    const auto mine_p = layer.parameters(), one_p = one.parameters();
    for (std::size_t i = 0; i < one_p.size(); ++i)
      expect_close(mine_p[i].grad(), one_p[i].grad(), c10::str("gradient ", i));
  });
}

// Packed and separate experts, every backend: one result.
TEST(Experts, PackedAndSeparateByEveryBackendAreEqual) {
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

TEST(Experts, AlignedGroupsKeepRowsInOrderBetweenZeros) {
  for (const auto& rows : {Shape{3, 0, 4, 1}, Shape{0, 0}, Shape{8}, Shape{0, 5}}) {
    const auto counts = at::tensor(rows, at::kLong);
    const auto m = counts.sum().item<std::int64_t>();
    const auto x = Draw(3).normal({m, 2}).abs() + 1;
    const auto groups = align_groups(counts, m, 4);
    const auto spread = groups.spread(x);
    EXPECT_EQ(spread.size(0) % 4, 0);
    EXPECT_TRUE(at::equal(groups.gather(spread), x));
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

TEST(Experts, EveryFloatingTypeRunsOnTheCpu) {
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

TEST(Experts, TheWeightCacheIsKeyedByIdentityAndVersion) {
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
}

TEST(AddCombined, WritesIntoItsBaseOnlyWhereNobodyElseSeesIt) {
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    Draw draw(5);
    const auto x = draw.normal({4, 6}, dtype), rows = draw.normal({8, 6}, dtype);
    const auto position = at::randperm(8, at::kLong).view({4, 2});
    const auto weight = draw.normal({4, 2}, dtype == at::kDouble ? at::kDouble : at::kFloat);
    const at::NoGradGuard no_grad;
    const auto base = draw.normal({4, 6}, dtype);
    const auto wanted = base + combine_rows(rows, position, weight);
    const auto own = base.clone();
    const auto result = add_combined(own, rows, position, weight, {x});
    EXPECT_TRUE(result.is_same(own));
    EXPECT_TRUE(at::equal(result, wanted));
    const auto view = x.flatten().narrow(0, 6, 12).view({2, 6});  // a view of what must stay, with an offset
    const auto before = x.clone();
    add_combined(view, rows, position.narrow(0, 0, 2), weight.narrow(0, 0, 2), {x});
    add_combined(x, rows, position, weight, {x});
    EXPECT_TRUE(at::equal(x, before));
  }
  auto base = at::zeros({2, 3}).requires_grad_();
  const auto y = add_combined(base, at::ones({2, 3}), at::tensor({0, 1}, at::kLong).view({2, 1}), {}, {});
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

TEST(LoadBalancer, CountsOnceUnderRecomputationAndOverMicroBatches) {
  auto options = small_options();
  options.balance_rate = 0.5;
  MixtureOfExperts layer(options);
  fill(layer, 2);
  const auto x = Draw(4).normal({6, 8});
  // Recomputation: the forward pass runs again inside backward, as activation checkpointing does.
  struct Recompute : torch::autograd::Function<Recompute> {
    static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& input, std::int64_t address) {
      ctx->saved_data["x"] = input;
      ctx->saved_data["layer"] = address;
      return reinterpret_cast<MixtureOfExperts*>(address)->forward(input);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list g) {
      const at::AutoGradMode enable(true);
      auto input = ctx->saved_data["x"].toTensor().detach().requires_grad_();
      auto* layer = reinterpret_cast<MixtureOfExperts*>(ctx->saved_data["layer"].toInt());
      layer->forward(input).backward(g[0]);
      return {input.grad(), at::Tensor()};
    }
  };
  for (int micro = 0; micro < 2; ++micro) {
    auto leaf = x.clone().requires_grad_();
    Recompute::apply(leaf, reinterpret_cast<std::int64_t>(&layer)).sum().backward();
  }
  EXPECT_EQ(layer.balancer()->counts.sum().item<std::int64_t>(), 2 * 6 * 2);
  layer.eval();
  layer.forward(x);
  EXPECT_EQ(layer.balancer()->counts.sum().item<std::int64_t>(), 2 * 6 * 2);
  const auto load = layer.balancer()->counts.to(at::kFloat);
  update_load_balancers(layer, {});
  EXPECT_TRUE(at::equal(layer.balancer()->bias, at::sign(load.mean() - load) * 0.5));
  EXPECT_EQ(layer.balancer()->counts.sum().item<std::int64_t>(), 0);
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

TEST(Capacity, ByProbabilityKeepsTheHeaviestEntries) {
  RouterOptions o{.experts = 3, .top_k = 1};
  const auto x = Draw(6).normal({12, 4}), gate = Draw(7).normal({3, 4});
  auto routing = route(x, gate, o);
  const auto before = routing.experts.flatten();
  const auto weights = routing.weights.flatten();
  const auto dropped = drop_over_capacity(routing, {}, {.factor = 0.75, .drop = DropPolicy::probability});
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
