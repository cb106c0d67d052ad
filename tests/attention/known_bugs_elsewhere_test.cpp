// Known bugs of other libraries with split sequences. Each test is named after the bug report.
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

const std::vector<AttentionStrategy> kAll{AttentionStrategy::automatic, AttentionStrategy::ring,
                                          AttentionStrategy::gather, AttentionStrategy::ulysses};

void check_all(Case c) {
  for (const auto strategy : kAll) {
    c.strategy = strategy;
    check_case(c);
  }
}

Case of_length(std::int64_t length, std::int64_t ranks = 2) {
  Case c;
  c.mesh = {ranks};
  c.queries = c.keys = length;
  c.features = c.values = 16;
  return c;
}

// PyTorch 2.15: context_parallel runs none of these nine cases on CPU.
TEST(AttentionIssuesOfOtherLibraries, ContextParallelOnCpuNineCases) {
  for (const bool causal : {true, false})
    check_all([&] {
      auto c = of_length(64);
      c.options.causal = causal;
      return c;
    }());
  for (const std::int64_t length : {62, 63}) {
    auto c = of_length(length);
    c.options.causal = true;
    check_all(c);
  }
  auto grouped = of_length(64);
  grouped.options.causal = true;
  grouped.groups = 2;
  check_all(grouped);
  auto masked = of_length(64);
  masked.options.mask = Draw(2).normal({2, 1, 64, 64});
  check_all(masked);
  auto dropped = of_length(64);
  dropped.options.causal = true;
  dropped.options.dropout = 0.5;
  check_all(dropped);
}

// pytorch#141429: load-balanced shards without a causal mask crash.
TEST(AttentionIssuesOfOtherLibraries, Pytorch141429LoadBalancedWithoutCausalMask) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : {1, 5, 30, 64}) {
      auto c = of_length(length, 3);
      c.options.causal = causal;
      for (auto& where : c.where) where = {ZigzagShard(2)};
      check_all(c);
    }
  }
}

// pytorch#152261: the gathered result differs, and backward reads memory out of bounds. Local parts are slices of a
// larger tensor, and the result has the query's order in memory.
TEST(AttentionIssuesOfOtherLibraries, Pytorch152261GatheredResult) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    Case c = of_length(7, 3);
    const auto t = tensors_of(c);
    const auto view = [&](const at::Tensor& x) {  // heads as a projection lays them out
      const auto tokens = distribute_tensor(x.transpose(1, 2).flatten(2).contiguous(), mesh, {Shard(1)});
      return tokens.view({c.batch, 7, 4, 16}).transpose(1, 2);
    };
    const AttentionStrategyScope scope(AttentionStrategy::ring);
    const auto y = at::scaled_dot_product_attention(view(t.q), view(t.k), view(t.v));
    const auto flat = y.transpose(1, 2).view({c.batch, 7, 64});  // a view, as on one device
    require(DTensor(flat).full_tensor(), expected_result(c, {t.q, t.k, t.v}, {}).transpose(1, 2).flatten(2), c,
            "tokens");
  });
}

// pytorch#163075, #185493: the longest sequence of a previous iteration is reused.
TEST(AttentionIssuesOfOtherLibraries, Pytorch163075And185493ChangingLengths) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const std::int64_t length : {64, 9, 63, 1, 64}) {
      for (const auto strategy : kAll) {
        auto c = of_length(length);
        c.options.causal = true;
        c.strategy = strategy;
        check_case(c, mesh);
      }
    }
  });
}

// pytorch#159706, #183968: short sequences fail, odd lengths are rounded down.
TEST(AttentionIssuesOfOtherLibraries, Pytorch159706And183968ShortAndOddLengths) {
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (std::int64_t length = 1; length <= 9; ++length) {
      auto c = of_length(length, ranks);
      c.options.causal = length % 2 == 0;
      c.strategy = AttentionStrategy::ring;
      check_case(c);
    }
  }
}

// pytorch#122460: backward does not match, and gathers what it does not need.
TEST(AttentionIssuesOfOtherLibraries, Pytorch122460BackwardGathersNothing) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    auto c = of_length(16, 4);
    c.strategy = AttentionStrategy::ring;
    const auto in = distributed(c, tensors_of(c), mesh);
    const AttentionStrategyScope scope(c.strategy);
    const auto y = attend(c, in, {});
    const auto grad = distribute_tensor(at::ones_like(y.detach()), mesh, DTensor(y).placements());
    const CommDebugMode comms;
    torch::autograd::grad({y}, in, {grad});
    for (const auto* kind : {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"}) {
      EXPECT_EQ(comms.total(kind).calls, 0) << comms.table();
    }
  });
}

// diffusers#14265: ring backward uses the keys of step 0. TransformerEngine#1557, Megatron-LM#1464, #1465: dq, dk, dv
// are off by a factor. More than two ranks distinguish the steps; each gradient is compared within 1e-12.
TEST(AttentionIssuesOfOtherLibraries, Diffusers14265TransformerEngine1557GradientsOfEachRingStep) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    for (const bool causal : {false, true}) {
      auto c = of_length(32, 4);
      c.options.causal = causal;
      const auto t = tensors_of(c);
      std::vector<at::Tensor> regular;
      for (const auto& x : t.inputs(c)) regular.push_back(x.detach().clone().requires_grad_());
      const auto wanted = torch::autograd::grad({expected_result(c, regular, {})}, regular, {t.grad});
      const auto in = distributed(c, t, mesh);
      const AttentionStrategyScope scope(AttentionStrategy::ring);
      const auto y = attend(c, in, {});
      const auto found = torch::autograd::grad({y}, in, {distribute_tensor(t.grad, mesh, {Shard(2)})});
      for (std::size_t i = 0; i < 3; ++i) {
        const auto far = (DTensor(found[i]).full_tensor() - wanted[i]).norm() / wanted[i].norm();
        EXPECT_LT(far.item<double>(), 1e-12) << i;
      }
    }
  });
}

// Megatron-LM#673, #7498, verl#5983, SkyRL#1420: each rank takes the mean over its own tokens, and a gradient is lost
// if a rank's only target is on another rank. Here few tokens count, on the last ranks.
TEST(AttentionIssuesOfOtherLibraries, Megatron673TokensCountOnceGlobally) {
  on_mesh({3}, [](const DeviceMesh& mesh) {
    for (const std::int64_t counted : {1, 4, 7}) {
      Draw draw(4);
      const auto x = draw.normal({1, 2, 7, 4}), w = draw.normal({8, 5});
      auto targets = draw.integers({1, 7}, 5);
      targets.narrow(1, 0, 7 - counted).fill_(-100);
      const auto loss = [&](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target) {
        const auto y = at::scaled_dot_product_attention(input, input, input, {}, 0, true);
        const auto logits = at::matmul(y.transpose(1, 2).flatten(2), weight);
        return at::cross_entropy_loss(logits.transpose(1, 2), target);
      };
      const auto a = x.clone().requires_grad_(), b = w.clone().requires_grad_();
      const auto wanted = loss(a, b, targets);
      const auto gradients = torch::autograd::grad({wanted}, {a, b});
      const auto dx = distribute_tensor(x, mesh, {Shard(2)}).requires_grad_();
      const auto dw = distribute_tensor(w, mesh, {Replicate()}).requires_grad_();
      const auto found = loss(dx, dw, distribute_tensor(targets, mesh, {Shard(1)}));
      expect_close(found, wanted, "the loss");
      const auto given = torch::autograd::grad({found}, {dx, dw});
      expect_close(given[0], gradients[0], "tokens");
      expect_close(given[1], gradients[1], "weights");
    }
  });
}

// torchtitan#4313, #4450: document boundaries are dropped, and heads must be divisible by the ranks. Here: one and
// three heads on two and four ranks.
TEST(AttentionIssuesOfOtherLibraries, Torchtitan4313And4450DocumentsAndIndivisibleHeads) {
  for (const std::int64_t ranks : {2, 4}) {
    for (const std::int64_t heads : {1, 3}) {
      auto c = of_length(21, ranks);
      c.heads = c.groups = heads;
      c.by_aten = false;
      c.options.causal = true;
      c.options.documents = {0, 4, 5, 16};
      check_all(c);
    }
  }
}

// torchtune#2924: a packed batch with a block mask; each row of the batch is packed differently.
TEST(AttentionIssuesOfOtherLibraries, Torchtune2924MasksOfPackedSequences) {
  auto c = of_length(18, 3);
  const auto document = at::tensor({0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3});
  const auto other = at::tensor({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2});
  const auto both = at::stack({document, other});
  c.options.mask = both.unsqueeze(2).eq(both.unsqueeze(1)).tril().unsqueeze(1);
  check_all(c);
  c.mask_where = {Shard(2)};
  check_all(c);
}

// physicsnemo: is_causal, a mask with replicated queries, dropout, grouped heads, queries on a two-dimensional mesh.
TEST(AttentionIssuesOfOtherLibraries, PhysicsnemoShardTensorAttention) {
  auto causal = of_length(10);
  causal.options.causal = true;
  check_all(causal);
  auto replicated = of_length(10);
  replicated.where[0] = {Replicate()};
  replicated.options.mask = Draw(2).normal({10, 10});
  check_all(replicated);
  auto dropped = of_length(10);
  dropped.options.dropout = 0.3;
  check_all(dropped);
  auto grouped = of_length(10);
  grouped.groups = 1;
  check_all(grouped);
  auto plane = of_length(10);
  plane.mesh = {2, 2};
  for (auto& where : plane.where) where = {Shard(2), Shard(2)};
  check_all(plane);
}

// marin#8141: a sliding window with grouped heads and a split sequence.
TEST(AttentionIssuesOfOtherLibraries, Marin8141WindowOfGroupedHeads) {
  for (const std::int64_t window : {1, 3, 8, 40}) {
    auto c = of_length(33, 3);
    c.groups = 2;
    c.by_aten = false;
    c.options.causal = window != 3;
    c.options.window = window;
    check_all(c);
  }
}

// Megatron-LM#7452: gradients of sinks count once for all ranks.
TEST(AttentionIssuesOfOtherLibraries, Megatron7452SinksCountOnce) {
  auto c = of_length(12, 4);
  c.mesh = {2, 2};
  for (auto& where : c.where) where = {Shard(2), Shard(1)};
  c.by_aten = false;
  c.options.sinks = at::tensor({0.5, -1.0, 2.0, 0.0}, at::kDouble);
  check_all(c);
}

}  // namespace
}  // namespace dtensor::test
