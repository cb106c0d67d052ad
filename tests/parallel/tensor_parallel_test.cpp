// A transformer under tensor and sequence parallelism: the results of one device, with no more collectives than a
// hand-written SPMD program.
#include <gtest/gtest.h>

#include "dtensor/dtensor.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

struct Gpt : nn::Module {
  Gpt(std::int64_t vocabulary, std::int64_t hidden, int layers, at::ScalarType dtype)
      : wte(vocabulary, hidden, -1, dtype), ln(hidden, 1e-5, true, dtype), lm_head(hidden, vocabulary, false, dtype) {
    register_module("wte", wte);
    for (int i = 0; i < layers; ++i) {
      h.push_back(std::make_unique<nn::Block>(nn::Attention::Options{.hidden = hidden, .heads = 4, .tensor = dtype},
                                              nn::MLP::Options{.hidden = hidden, .ffn = 2 * hidden, .tensor = dtype}));
      register_module("h." + std::to_string(i), *h.back());
    }
    register_module("ln", ln);
    register_module("lm_head", lm_head);
  }
  at::Tensor forward(const at::Tensor& ids) const {
    at::Tensor x = wte.forward(ids);
    for (const auto& block : h) x = block->forward(x);
    return lm_head.forward(ln.forward(x));
  }
  nn::Embedding wte;
  std::vector<std::unique_ptr<nn::Block>> h;
  nn::LayerNorm ln;
  nn::Linear lm_head;
};

ParallelPlan plan_of(bool sequence, bool loss) {
  const Placement between = sequence ? Shard(1) : Replicate();
  ParallelPlan plan = {{"wte", RowwiseParallel{.out = between}},
                       {"h.*.attn.q_proj", ColwiseParallel()},
                       {"h.*.attn.k_proj", ColwiseParallel()},
                       {"h.*.attn.v_proj", ColwiseParallel()},
                       {"h.*.attn.o_proj", RowwiseParallel{.out = between}},
                       {"h.*.mlp.up_proj", ColwiseParallel()},
                       {"h.*.mlp.down_proj", RowwiseParallel{.out = between}},
                       {"lm_head", ColwiseParallel{.out = loss ? Shard(2) : Replicate()}}};
  if (sequence) {
    const ParallelPlan more = {{"h.*.attn", PrepareModuleInput{Replicate()}},
                               {"h.*.mlp", PrepareModuleInput{Replicate()}},
                               {"h.*.ln1", SequenceParallel()},
                               {"h.*.ln2", SequenceParallel()},
                               {"ln", SequenceParallel()}};
    plan.insert(plan.end(), more.begin(), more.end());
  }
  return plan;
}

constexpr std::int64_t kVocabulary = 37, kHidden = 16, kLayers = 2;

double step(const Gpt& model, const at::Tensor& ids, const at::Tensor& targets) {
  const at::Tensor loss = at::cross_entropy_loss(model.forward(ids).flatten(0, 1), targets.flatten());
  loss.backward();
  const at::Tensor value = loss.detach();
  return is_dtensor(value) ? DTensor(value).full_tensor().item<double>() : value.item<double>();
}

struct Curve {
  std::vector<double> loss;
};

struct MeshLayout {
  test::Shape mesh;
  bool sequence = false, loss = false;
};

DeviceMesh make_mesh(const Communicator& world, const test::Shape& shape) {
  const std::vector<std::string> names = {"replicate", "shard", "tp"};
  return init_device_mesh(world, at::kCPU, shape, {names.end() - static_cast<long>(shape.size()), names.end()});
}

Curve train(const MeshLayout& layout, int steps, at::ScalarType dtype) {
  Curve curve;
  run_local(test::count(layout.mesh), [&](Communicator world) {
    const DeviceMesh mesh = make_mesh(world, layout.mesh);
    manual_seed(mesh, 3);
    const auto make = [&] {
      const MeshScope scope(mesh);
      return std::make_unique<Gpt>(kVocabulary, kHidden, kLayers, dtype);
    };
    const auto model = make();
    parallelize(*model, mesh, plan_of(layout.sequence, layout.loss));
    test::Draw draw(9);
    const at::Tensor ids = draw.integers({4, 7}, kVocabulary), targets = draw.integers({4, 7}, kVocabulary);
    Placements batch(layout.mesh.size(), Shard(0));
    batch.back() = Replicate();
    const auto place = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, batch); };
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(step(*model, place(ids), place(targets)));
      at::NoGradGuard no_grad;
      for (at::Tensor p : model->parameters()) {
        p.sub_(p.grad(), 0.2);
        p.mutable_grad().reset();
      }
    }
    if (world.rank() == 0) curve.loss = losses;
  });
  return curve;
}

void expect_equal(const MeshLayout& layout, int steps, at::ScalarType dtype, double tolerance) {
  static std::map<std::pair<int, at::ScalarType>, Curve> one;
  Curve& expected = one[{steps, dtype}];
  if (expected.loss.empty()) expected = train({.mesh = {1}}, steps, dtype);
  const Curve actual = train(layout, steps, dtype);
  for (std::size_t i = 0; i < expected.loss.size(); ++i) {
    EXPECT_NEAR(actual.loss[i], expected.loss[i], tolerance * expected.loss[i])
        << "step " << i << " mesh [" << c10::Join(", ", layout.mesh) << "] sequence " << layout.sequence << " loss "
        << layout.loss;
  }
  EXPECT_LT(expected.loss.back(), expected.loss.front() * 0.9);
}

TEST(TensorParallel, LossesMatchSingleDevice) {
  for (const test::Shape& mesh : {test::Shape{2}, test::Shape{2, 2}}) {
    for (const bool sequence : {false, true}) {
      for (const bool loss : {false, true}) expect_equal({mesh, sequence, loss}, 100, at::kDouble, 1e-9);
    }
  }
  expect_equal({{4}, true, true}, 100, at::kDouble, 1e-9);
  expect_equal({{2, 2, 2}, false, true}, 100, at::kDouble, 1e-9);
  expect_equal({{2, 2, 2}, true, false}, 100, at::kDouble, 1e-9);
}

TEST(TensorParallel, LossesMatchInSinglePrecision) {
  expect_equal({{2}, false, true}, 20, at::kFloat, 1e-5);
  expect_equal({{3}, true, true}, 20, at::kFloat, 1e-5);
  expect_equal({{2, 3}, true, false}, 20, at::kFloat, 1e-5);
}

// Collectives of one block on a mesh of two ranks.
struct BlockCount {
  CommDebugMode::Count all, reduce, gather, scatter;
};

void count_block(bool sequence, const std::function<void(const CommDebugMode&)>& check) {
  run_local(2, [&](Communicator world) {
    const DeviceMesh mesh = make_mesh(world, {2});
    Gpt model(kVocabulary, kHidden, 3, at::kFloat);
    parallelize(model, mesh, plan_of(sequence, true));
    test::Draw draw(9);
    const at::Tensor ids = distribute_tensor(draw.integers({4, 8}, kVocabulary), mesh, {Replicate()});
    step(model, ids, ids);
    const CommDebugMode comms;
    step(model, ids, ids);
    check(comms);
  });
}

TEST(TensorParallel, TwoAllReducesPerBlockEachWay) {
  count_block(false, [](const CommDebugMode& comms) {
    for (const char* block : {"h.0", "h.1", "h.2"}) {
      for (const Phase phase : {Phase::forward, Phase::backward}) {
        EXPECT_EQ(comms.total("all_reduce", phase, block).calls, 2) << comms.table();
        EXPECT_EQ(comms.total("", phase, block).calls, 2) << comms.table();
      }
    }
  });
}

// Grouped queries, SwiGLU and biases: the same count and the gradients of one device, also with more ranks than key
// heads.
TEST(TensorParallel, GroupedQueriesGatedLayersAndBiases) {
  for (const int ranks : {2, 3, 4}) {
    run_local(ranks, [&](Communicator world) {
      const DeviceMesh mesh = make_mesh(world, {ranks});
      const auto make = [] {
        return nn::Block(
            {.hidden = 16, .heads = 4, .kv_heads = 2, .bias = true, .tensor = at::kDouble},
            {.hidden = 16, .ffn = 24, .activation = nn::Activation::swiglu, .bias = true, .tensor = at::kDouble});
      };
      nn::Block regular = make(), split = make();
      test::Draw draw(4);
      auto from = regular.named_parameters(), to = split.named_parameters();
      for (std::size_t i = 0; i < from.size(); ++i) {
        const at::Tensor value = draw.normal(from[i].second->sizes().vec());
        *from[i].second = value.clone().requires_grad_();
        *to[i].second = value.clone().requires_grad_();
      }
      parallelize(split, mesh, {{"attn.*", ReplicateParameter()}, {"mlp.*", ReplicateParameter()}});
      parallelize(split, mesh,
                  {{"attn.q_proj", ColwiseParallel()},
                   {"attn.k_proj", ColwiseParallel()},
                   {"attn.v_proj", ColwiseParallel()},
                   {"attn.o_proj", RowwiseParallel()},
                   {"mlp.gate_proj", ColwiseParallel()},
                   {"mlp.up_proj", ColwiseParallel()},
                   {"mlp.down_proj", RowwiseParallel()}});
      const at::Tensor value = draw.normal({2, 5, 16});
      const at::Tensor x = distribute_tensor(value, mesh, {Replicate()}).requires_grad_();
      const at::Tensor regular_x = value.clone().requires_grad_();
      const CommDebugMode comms;
      const at::Tensor y = split.forward(x), expected = regular.forward(regular_x);
      y.square().sum().backward();
      if (ranks == 2) {
        EXPECT_EQ(comms.total("", Phase::forward).calls, 2) << comms.table();
        EXPECT_EQ(comms.total("", Phase::backward).calls, 2) << comms.table();
      }
      expected.square().sum().backward();
      test::expect_close(y.detach(), expected.detach(), "block on " + std::to_string(ranks));
      test::expect_close(x.grad(), regular_x.grad(), "input", 1e-8);
      for (std::size_t i = 0; i < from.size(); ++i) {
        test::expect_close(to[i].second->grad(), from[i].second->grad(), to[i].first, 1e-8);
      }
    });
  }
}

// Backward gathers the inputs of attention and MLP again, since their shards are saved.
TEST(SequenceParallel, TwoAllGathersAndTwoReduceScattersPerBlockEachWay) {
  count_block(true, [](const CommDebugMode& comms) {
    for (const char* block : {"h.0", "h.1", "h.2"}) {
      EXPECT_EQ(comms.total("all_gather", Phase::forward, block).calls, 2) << comms.table();
      EXPECT_EQ(comms.total("reduce_scatter", Phase::forward, block).calls, 2) << comms.table();
      EXPECT_EQ(comms.total("", Phase::forward, block).calls, 4) << comms.table();
      EXPECT_EQ(comms.total("all_gather", Phase::backward, block).calls, 2 + 2) << comms.table();
      EXPECT_EQ(comms.total("reduce_scatter", Phase::backward, block).calls, 2) << comms.table();
      EXPECT_EQ(comms.total("", Phase::backward, block).calls, 6) << comms.table();
    }
  });
}

// Only the weights and biases of the seven norms are Replicate with Partial gradients.
TEST(SequenceParallel, GradientsOfAllNormsAreReducedInOneCollective) {
  count_block(true, [](const CommDebugMode& comms) {
    const CommDebugMode::Count all = comms.total("all_reduce", Phase::backward);
    EXPECT_EQ(all.calls, 2) << comms.table();  // One of them is the loss's, a scalar for each token.
    EXPECT_EQ(all.bytes, 7 * 2 * kHidden * 4 + 4 * 8 * 4) << comms.table();
  });
}

}  // namespace
