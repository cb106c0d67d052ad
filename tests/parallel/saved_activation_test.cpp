// Activations that a plan gathers for an operator are saved for backward as their shards: memory, collectives and
// gradients.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor.h"
#include "dtensor/nn/decoder.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

constexpr std::int64_t kBatch = 2, kTokens = 128, kHidden = 128, kHeads = 8, kKeyHeads = 4, kFfn = 384;

ParallelPlan sequence_parallel_plan(bool gated) {
  const ColwiseParallel column{.in = {}};
  const RowwiseParallel row{.out = Shard(1)};
  ParallelPlan plan = {{"attn", PrepareModuleInput{Replicate()}},
                       {"attn.q_proj", column},
                       {"attn.k_proj", column},
                       {"attn.v_proj", column},
                       {"attn.o_proj", row},
                       {"mlp", PrepareModuleInput{Replicate()}},
                       {"mlp.up_proj", column},
                       {"mlp.down_proj", row}};
  if (gated) plan.emplace_back("mlp.gate_proj", column);
  return plan;
}

// Bytes of float activations that a layer keeps for backward on each of t ranks. Korthikanti et al. (2022,
// arXiv:2205.05198), equation 4, with tensor and sequence parallelism in half precision: sbh (34 / t + 5as / ht), where
// 34 = 2 + 2 (inputs of the norms) + 2 (input of q, k and v) + 6 (q, k, v) + 2 (input of the output projection)
//      + 2 (input of the MLP) + 8 (input of GeLU) + 8 (input of its second product) + 2 (dropout masks).
// Here: no dropout; flash attention has the log-sum-exp of each query in place of the scores (5as / ht); k and v are
// shared by groups of heads; a gated MLP has two products' results and their product, 3 of width f.
std::int64_t megatron_bytes(std::int64_t ranks, bool gated) {
  const std::int64_t tokens = kBatch * kTokens, keys = kHidden / kHeads * kKeyHeads;
  const std::int64_t attention = 2 * kHidden + kHidden + 2 * keys;  // its input, that of its output projection, q, k, v
  const std::int64_t features = 2 * kHidden + attention + kHidden + (gated ? 3 : 2) * kFfn;
  return tokens * (features + kHeads) / ranks * 4;
}

// Bytes that forward keeps. The input, which is older than the timeline, stands for the result.
template <class Layer>
std::int64_t kept_bytes(const DeviceMesh& mesh, const Layer& layer) {
  const at::Tensor x = distribute_tensor(at::ones({kBatch, kTokens, kHidden}), mesh, {Shard(1)}).requires_grad_();
  layer(x);  // results of later calls are of the same kinds
  const MemoryTimeline timeline;
  const at::Tensor y = layer(x);
  EXPECT_EQ(DTensor(y).placements(), Placements{Shard(1)});
  return timeline.live();
}

TEST(SavedActivation, LayersKeepTheBytesOfMegatronsFormula) {
  for (const int ranks : {2, 4}) {
    for (const bool gated : {false, true}) {
      run_local(ranks, [&](Communicator world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks}, {"tp"});
        nn::Block block(
            {.hidden = kHidden, .heads = kHeads, .kv_heads = kKeyHeads},
            {.hidden = kHidden, .ffn = kFfn, .activation = gated ? nn::Activation::swiglu : nn::Activation::gelu});
        parallelize(block, mesh, sequence_parallel_plan(gated));
        const auto kept = kept_bytes(mesh, [&](const at::Tensor& x) { return block.forward(x); });
        EXPECT_LE(static_cast<double>(kept), 1.05 * static_cast<double>(megatron_bytes(ranks, gated)));
      });
    }
  }
}

// Rotary positions too: attention saves the rotated queries and keys, and nothing saves those before.
TEST(SavedActivation, LayersOfDecodersKeepTheBytesOfMegatronsFormula) {
  for (const auto activation : {nn::Activation::silu, nn::Activation::gelu, nn::Activation::gelu_tanh}) {
    run_local(4, [&](Communicator world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {4}, {"tp"});
      nn::DecoderConfig config;
      config.vocabulary = 8, config.hidden = kHidden, config.layers = 1, config.heads = kHeads;
      config.kv_heads = kKeyHeads, config.ffn = kFfn, config.activation = activation;
      config.ropes = {{.size = kHidden / kHeads}};
      config = config.checked();
      nn::DecoderBlock block(config, 0);
      parallelize(block, mesh, sequence_parallel_plan(/*gated=*/true));
      const nn::Rope rope(config.ropes.at(0));
      const nn::DecoderPass pass{.angles = {rope.angles(0, kTokens, at::kFloat)}};
      const auto kept = kept_bytes(mesh, [&](const at::Tensor& x) { return block.forward(x, pass).y; });
      EXPECT_LE(static_cast<double>(kept), 1.05 * static_cast<double>(megatron_bytes(4, true)));
    });
  }
}

// Two linear layers that share an input, gathered by constrain() or by an explicit redistribution.
struct Layers {
  at::Tensor x, a, b;  // the input, sharded by tokens, and the weights, by outputs

  Layers(const DeviceMesh& mesh, const Placements& tokens, const Placements& outputs, std::uint64_t seed)
      : gathered_(tokens.size()) {
    test::Draw draw(seed);
    x = distribute_tensor(draw.normal({3, 5, 4}), mesh, tokens).requires_grad_();
    a = distribute_tensor(draw.normal({6, 4}), mesh, outputs).requires_grad_();
    b = distribute_tensor(draw.normal({7, 4}), mesh, outputs).requires_grad_();
    for (std::size_t i = 0; i < tokens.size(); ++i) gathered_[i] = outputs[i].is_replicate() ? tokens[i] : Replicate();
  }
  std::vector<at::Tensor> leaves() const { return {x, a, b}; }
  at::Tensor loss(bool saves_shards) const {
    const at::Tensor in = x * 1;
    const at::Tensor full = saves_shards ? constrain(in, gathered_) : DTensor(in).redistribute(gathered_);
    return at::linear(full, a).square().sum() + at::linear(full, b).sin().sum();
  }

 private:
  Placements gathered_;
};

void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(DTensor(actual[i]).placements(), DTensor(expected[i]).placements());
    EXPECT_TRUE(at::equal(DTensor(actual[i]).to_local(), DTensor(expected[i]).to_local())) << "gradient " << i;
  }
}

TEST(SavedActivation, GradientsAreBitwiseThoseOfSavedGatheredTensors) {
  const std::vector<std::tuple<test::Shape, Placements, Placements>> cases = {
      {{2}, {Shard(1)}, {Shard(0)}},
      {{3}, {Shard(1)}, {Shard(0)}},
      {{2}, {Shard(0)}, {Shard(0)}},
      {{2}, {ZigzagShard(1)}, {Shard(0)}},
      {{2, 2}, {Shard(0), Shard(1)}, {Replicate(), Shard(0)}},
      {{2, 3}, {Shard(1), Shard(1)}, {Shard(0), Shard(0)}},
  };
  for (const auto& [shape, tokens, outputs] : cases) {
    test::on_mesh(shape, [&, &tokens = tokens, &outputs = outputs](const DeviceMesh& mesh) {
      const Layers layers(mesh, tokens, outputs, 5);
      const auto expected = torch::autograd::grad({layers.loss(false)}, layers.leaves());
      const at::Tensor loss = layers.loss(true);
      for (const bool again : {true, false}) {  // twice over one graph
        expect_same(torch::autograd::grad({loss}, layers.leaves(), {}, /*retain_graph=*/again), expected);
      }
      expect_same(torch::autograd::grad({layers.loss(true)}, {layers.a, layers.b}), {expected[1], expected[2]});
      const auto second = [&](bool saves_shards) {
        const auto first =
            torch::autograd::grad({layers.loss(saves_shards)}, layers.leaves(), {}, true, /*create_graph=*/true);
        return torch::autograd::grad({first[0].square().sum() + first[1].sin().sum()}, layers.leaves());
      };
      const auto actual = second(true), wanted = second(false);  // sums in another order
      for (std::size_t i = 0; i < wanted.size(); ++i) test::expect_close(actual[i], wanted[i], "second derivative");
    });
  }
}

TEST(SavedActivation, OneAllGatherInBackwardServesAllLayersThatShareTheInput) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const Layers layers(mesh, {Shard(1)}, {Shard(0)}, 5);
    const at::Tensor loss = layers.loss(true);
    const CommDebugMode comms;
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(comms.total("all_gather").calls, 1) << comms.table();
    EXPECT_EQ(comms.total("reduce_scatter").calls, 1) << comms.table();
    loss.backward();
    EXPECT_EQ(comms.total("all_gather").calls, 2) << comms.table();
  });
}

// Frozen weights need no input, a frozen input has no gradient at which the gathered tensor could be dropped.
TEST(SavedActivation, FrozenTensorsNeedNoMoreThanTheirGradients) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto calls = [&](bool x, bool a, bool b) {
      Layers layers(mesh, {Shard(1)}, {Shard(0)}, 5);
      layers.x.requires_grad_(x), layers.a.requires_grad_(a), layers.b.requires_grad_(b);
      const at::Tensor loss = layers.loss(true);
      const CommDebugMode comms;
      loss.backward();
      return comms.total("all_gather").calls;
    };
    EXPECT_EQ(calls(true, false, false), 0);
    EXPECT_EQ(calls(true, true, false), 1);
    EXPECT_EQ(calls(false, true, true), 1);
  });
}

TEST(SavedActivation, BackwardReturnsTheGatheredTensorsMemory) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const Layers layers(mesh, {Shard(1)}, {Shard(0)}, 5);
    const at::Tensor loss = layers.loss(true);
    const auto pass = [&] { torch::autograd::grad({loss}, layers.leaves(), {}, /*retain_graph=*/true); };
    pass();
    const MemoryTimeline timeline;
    pass();
    EXPECT_EQ(timeline.live(), 0);
  });
}

// Written tensors are no longer the gather of their source.
TEST(SavedActivation, WritesAreSeenAsOnOneDevice) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto gradient = [&](bool write_gathered) {
      const Layers layers(mesh, {Shard(1)}, {Shard(0)}, 5);
      const at::Tensor in = layers.x * 1;
      const at::Tensor full = constrain(in, {Replicate()});
      {
        const at::NoGradGuard no_grad;
        write_gathered ? full.mul_(2) : in.mul_(2);
      }
      return torch::autograd::grad({at::linear(full, layers.a).sum()}, {layers.a})[0];
    };
    const Layers layers(mesh, {Shard(1)}, {Shard(0)}, 5);
    const at::Tensor expected = torch::autograd::grad({at::linear(layers.x, layers.a).sum()}, {layers.a})[0];
    test::expect_close(gradient(true), expected * 2, "gathered tensor written");
    test::expect_close(gradient(false), expected, "source written before its use");
    const at::Tensor in = layers.x * 1;
    const at::Tensor result = at::linear(constrain(in, {Replicate()}), layers.a).sum();
    in.add_(1);
    EXPECT_THROW(result.backward(), c10::Error);
  });
}

// Hidden states that are split by tokens and meet a head that is split by classes are gathered, and saved as shards.
TEST(SavedActivation, LinearCrossEntropyKeepsShards) {
  test::on_mesh({4}, [](const DeviceMesh& mesh) {
    test::Draw draw(3);
    const at::Tensor values = draw.normal({2, 64, 256}), weights = draw.normal({16, 256});
    const at::Tensor targets = at::arange(128).remainder(16).view({2, 64});
    const at::Tensor weight = distribute_tensor(weights, mesh, {Shard(0)}).requires_grad_();
    const at::Tensor hidden = distribute_tensor(values, mesh, {Shard(1)}).requires_grad_();
    const auto loss_of = [&](const at::Tensor& h) { return linear_cross_entropy(h, weight, targets, {}, 32); };
    loss_of(hidden);
    const MemoryTimeline timeline;
    const at::Tensor loss = loss_of(hidden);
    EXPECT_LT(timeline.live(), DTensor(hidden).to_local().nbytes());
    const CommDebugMode comms;
    const auto actual = torch::autograd::grad({loss}, {hidden, weight});
    EXPECT_EQ(comms.total("all_gather").calls, 1) << comms.table();
    const at::Tensor gathered = DTensor(hidden).redistribute({Replicate()});
    expect_same(actual, torch::autograd::grad({loss_of(gathered)}, {hidden, weight}));
    const auto second = [&](const at::Tensor& h) {
      const auto first = torch::autograd::grad({loss_of(h)}, {hidden}, {}, true, /*create_graph=*/true);
      return torch::autograd::grad({first[0].square().sum()}, {weight})[0];
    };
    test::expect_close(second(hidden), second(gathered), "second derivative");
  });
}

// Without a plan, the operator moves its operand: autograd sees the operand as it was.
TEST(SavedActivation, ImplicitMovesKeepTheOperand) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::ones({2, 64, 32}), mesh, {Shard(1)});
    const at::Tensor weight = distribute_tensor(at::ones({32, 32}), mesh, {Shard(0)}).requires_grad_();
    for (const bool matmul : {false, true}) {
      const auto run = [&] { return matmul ? at::matmul(x, weight.t()) : at::linear(x, weight); };
      const std::int64_t result = DTensor(run()).to_local().nbytes();
      const MemoryTimeline timeline;
      const at::Tensor y = run();
      EXPECT_EQ(timeline.live(), result);
    }
  });
}

}  // namespace
