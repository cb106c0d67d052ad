// Edge cases: experts and ranks without tokens, Inf weights, dispatchers that must agree bit for bit, and the order of
// collectives.
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "dtensor/checkpoint_activations.h"
#include "moe/experts/experts.h"
#include "moe/routing/router_parts.h"
#include "small_layer.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

// Sets a gate that routes every token with a positive first feature to expert 0, then 1.
void send_all_to_first(MixtureOfExperts& layer) {
  const at::NoGradGuard no_grad;
  auto gate = at::zeros_like(layer.gate.weight);
  gate.select(0, 0).select(0, 0).fill_(5);
  gate.select(0, 1).select(0, 0).fill_(2);
  layer.gate.weight.copy_(gate);
}

TEST(MoeEdges, UnusedExpertMayHaveInfWeightsAndGetsZeroGradient) {
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

TEST(MoeEdges, EmptyBatchGivesZeroGradients) {
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

TEST(MoeEdges, OrderOfCollectivesDoesNotDependOnData) {
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
      layer.forward(x);  // creates communicators
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

// Weights gathered in each pass are packed once, until a parameter is written.
TEST(MoeEdges, PackedWeightsAreCachedForAnyMesh) {
  for (const Shape& shape : {Shape{1, 2}, Shape{2, 1}, Shape{2, 2}}) {
    run_local(count(shape), [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, shape, {"edp", "ep"});
      auto options = small_options();
      options.router.choice = RouterChoice::round_robin;
      MixtureOfExperts layer(options), regular(options);
      fill(layer, 5), fill(regular, 5);
      apply_expert_parallel(layer, mesh);
      const auto values = Draw(7).normal({8, 8});
      const auto x = distribute_tensor(values, mesh, {Shard(0), Shard(0)});
      const at::NoGradGuard no_grad;
      for (std::uint64_t pass = 0; pass < 5; ++pass) {
        expect_close(layer.forward(x), regular.forward(values), "y");
        EXPECT_EQ(layer.weight_cache().misses(), 1U);
        EXPECT_EQ(layer.weight_cache().hits(), pass);
      }
      layer.experts.w2.mul_(2), regular.experts.w2.mul_(2);
      expect_close(layer.forward(x), regular.forward(values), "y after a write");
      EXPECT_EQ(layer.weight_cache().misses(), 2U);
    });
  }
}

// A pass with gradients frees packed weights, and the forward pass of a recomputed segment packs none.
TEST(MoeEdges, TrainingKeepsNoPackedWeights) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    auto options = small_options();
    options.router.choice = RouterChoice::round_robin;
    MixtureOfExperts layer(options);
    fill(layer, 5);
    apply_expert_parallel(layer, mesh);
    const auto x = distribute_tensor(Draw(7).normal({8, 8}), mesh, {Shard(0)});
    const auto infer = [&] {
      const at::NoGradGuard no_grad;
      layer(x);
    };
    const auto run = [&](const at::Tensor& in) { return layer(in); };
    checkpoint(run, x).sum().backward();
    EXPECT_EQ(layer.weight_cache().misses(), 0U);
    infer();
    layer(x).sum().backward();
    infer();
    EXPECT_EQ(layer.weight_cache().misses(), 2U);
    EXPECT_EQ(layer.weight_cache().hits(), 0U);
    checkpoint(run, x).sum().backward();
    infer();
    EXPECT_EQ(layer.weight_cache().misses(), 3U);
  });
}

// Five tokens on two ranks: the round-robin rule determines what others send only if all ranks have equally many
// tokens.
TEST(MoeEdges, UnevenTokensWithEqualDispatchAreOneErrorOnEveryRank) {
  run_local(2, [&](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    auto options = small_options();
    options.router.choice = RouterChoice::round_robin;
    MixtureOfExperts layer(options);
    apply_expert_parallel(layer, mesh);
    layer.set_dispatch(DispatchKind::equal);
    const auto x = distribute_tensor(Draw(7).normal({5, 8}), mesh, {Shard(0)});
    const auto error = error_of([&] { layer.forward(x); });
    EXPECT_NE(error.find("EqualAllToAll: 5 tokens on 2 ranks"), std::string::npos) << world.rank() << error;
  });
}

TEST(MoeEdges, EqualDispatchEqualsGeneralDispatchBitForBit) {
  for (const std::int64_t tokens : {8, 12, 3, 1}) {  // per rank, without and with padding
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
        EXPECT_EQ(collectives[1].size() + 1, collectives[0].size());  // counts are not exchanged
      });
    }
  }
}

TEST(MoeEdges, OnlyRemoteRowsAndCountsAreExchanged) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    MixtureOfExperts layer(small_options());
    fill(layer, 3);
    layer.gate.weight = distribute_tensor(layer.gate.weight.detach(), mesh["ep"], {Replicate()}).requires_grad_();
    apply_expert_parallel(layer, mesh);
    const auto x = distribute_tensor(Draw(6).normal({9, 8}), mesh, {Shard(0)}).requires_grad_();
    layer.forward(x);
    std::int64_t bytes = 0;
    const EventListener listener([&](const Event& event) {
      if (event.kind == Event::Kind::collective && event.name == "all_to_all") bytes += event.bytes;
    });
    layer.forward(x).sum().backward();
    const auto moved = bytes;
    const auto sent = layer.stats().load.narrow(0, world.rank() == 0 ? 2 : 0, 2).sum().view({1}).contiguous();
    const auto taken = exchange_splits({sent.item<std::int64_t>(), sent.item<std::int64_t>()}, world);
    const auto rows = sent.item<std::int64_t>() + taken[1 - world.rank()];
    EXPECT_EQ(moved, 2 * rows * 8 * 8);  // sent and returned, in forward and backward
  });
}

TEST(MoeEdges, EqualDispatchNeedsRoundRobinRouting) {
  MixtureOfExperts layer(small_options());
  layer.set_dispatch(DispatchKind::equal);
  EXPECT_THROW(layer.forward(at::zeros({4, 8}, at::kDouble)), c10::Error);
}

TEST(MoeEdges, IndivisibleExpertsAreAnErrorWithBothNumbers) {
  try {
    run_local(3, [](Communicator world) {
      MixtureOfExperts layer(small_options());
      apply_expert_parallel(layer, init_device_mesh(world, at::kCPU, {3}, {"ep"}));
    });
    FAIL() << "no error";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("4 experts are not divisible by 3 ranks"), std::string::npos) << e.what();
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

// Each rank gives regular tokens, as in hand-written SPMD programs.
TEST(MoeEdges, RegularTokensOfEachRankFormTheBatch) {
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

}  // namespace
}  // namespace dtensor::test
