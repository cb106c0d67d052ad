// Recomputation gives the same gradients, random numbers and counts as a run without it.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"
#include "dtensor/fully_shard.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;
using dtensor::test::error_of;

nn::Block block() {
  return nn::Block({.hidden = 8, .heads = 4, .bias = true, .tensor = at::kDouble},
                   {.hidden = 8, .ffn = 12, .bias = true, .tensor = at::kDouble});
}

const ParallelPlan kPlan = {{"attn.q_proj", ColwiseParallel()}, {"attn.k_proj", ColwiseParallel()},
                            {"attn.v_proj", ColwiseParallel()}, {"attn.o_proj", RowwiseParallel()},
                            {"mlp.up_proj", ColwiseParallel()}, {"mlp.down_proj", RowwiseParallel()}};

struct Result {
  std::vector<at::Tensor> grads;  // Local tensors.
  RngState random;
  std::int64_t calls = 0;  // Number of collectives.
};

enum class How { regular, full, keeps, nested };

Result run(const DeviceMesh& mesh, How how) {
  manual_seed(mesh, 1);
  nn::Block model = [&] {
    const MeshScope scope(mesh);
    return block();
  }();
  parallelize(model, mesh, kPlan);
  for (const auto& [name, tensor] : model.named_parameters()) {
    DTensor p(*tensor);
    if (p.placements()[0].is_replicate()) {
      Placements stored = p.placements();
      stored[0] = (stored[1].is_shard(0) ? StridedShard(0, mesh.size(1)) : Shard(0)).as_storage();
      p.redistribute_(stored);
    }
  }
  test::Draw draw(6);
  const at::Tensor x = distribute_tensor(draw.normal({4, 3, 8}), mesh, {Shard(0), Replicate()}).requires_grad_();
  const auto body = [&](const at::Tensor& input) { return at::dropout(model.forward(input), 0.3, true); };
  const auto nested = [&](const at::Tensor& input) {
    return at::dropout(checkpoint([&](const at::Tensor& t) { return model.forward(t); }, input), 0.3, true);
  };
  const CommDebugMode comms;
  at::Tensor y;
  if (how == How::regular) y = body(x * 1);
  if (how == How::full) y = checkpoint(body, x * 1);
  if (how == How::keeps) y = checkpoint(body, x * 1, {.keep = {"aten::mm", "aten::addmm"}});
  if (how == How::nested) y = checkpoint(nested, x * 1, {.keep = {"aten::addmm"}});
  y.square().sum().backward();
  Result result{{DTensor(x.grad()).to_local()}, get_rng_state(mesh), comms.total().calls};
  for (const at::Tensor& p : model.parameters()) result.grads.push_back(DTensor(p.grad()).to_local());
  return result;
}

TEST(Checkpoint, GradientsAreBitEqual) {
  for (const auto& shape : {test::Shape{1, 1}, test::Shape{1, 2}, test::Shape{2, 1}, test::Shape{2, 2}}) {
    run_local(test::count(shape), [&](Communicator world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, shape, {"dp", "tp"});
      const Result expected = run(mesh, How::regular);
      for (const How how : {How::full, How::keeps, How::nested}) {
        const Result actual = run(mesh, how);
        EXPECT_EQ(actual.random, expected.random);
        for (std::size_t i = 0; i < expected.grads.size(); ++i) {
          EXPECT_TRUE(at::equal(actual.grads[i], expected.grads[i])) << i << " how " << static_cast<int>(how);
        }
      }
    });
  }
}

struct Stack : nn::Module {
  Stack() : first(block()), second(block()) {
    register_module("first", first);
    register_module("second", second);
  }
  nn::Block first, second;
};

// The gradient of a segment's input is Partial over tp. Unlike that of a leaf it cannot stay pending, since the layers
// before the segment need it.
TEST(Checkpoint, LayersBeforeASegmentGetTheirGradient) {
  test::Draw draw(9);
  const at::Tensor scale = draw.normal({4}), x = draw.normal({64, 4}), up = draw.normal({4, 8}),
                   down = draw.normal({8, 4});
  const auto loss = [](const at::Tensor& y) { return y.square().sum(); };
  const auto segment = [](const std::vector<at::Tensor>& in) {
    return std::vector{at::mm(at::gelu(at::mm(in[0], in[1])), in[2])};
  };
  at::Tensor regular = scale.clone().requires_grad_();
  loss(segment({x * regular, up, down})[0]).backward();
  test::on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const bool unreduced : {false, true}) {
      const auto put = [&](const at::Tensor& t, const Placement& p) { return distribute_tensor(t, mesh, {p}); };
      const at::Tensor own = put(scale, Replicate()).requires_grad_(), columns = put(up, Shard(1)),
                       rows = put(down, Shard(0)), input = put(x, Replicate());
      {
        const CommDebugMode comms;
        std::optional<NoGradientSync> off;
        if (unreduced) off.emplace();
        loss(checkpoint(segment, {input * own, columns, rows})[0]).backward();
        const auto forward = comms.total("all_reduce", Phase::forward),
                   backward = comms.total("all_reduce", Phase::backward);
        EXPECT_EQ(forward.calls, 1);  // Of the result; none in the recomputation.
        EXPECT_EQ(backward.calls, unreduced ? 0 : 1);
        EXPECT_EQ(comms.total().calls, forward.calls + backward.calls);
        EXPECT_LE(comms.total().bytes, (unreduced ? 1 : 2) * x.numel() * 8);
      }
      ASSERT_TRUE(own.grad().defined());
      test::expect_close(own.grad(), regular.grad(), unreduced ? "without synchronization" : "with it");
    }
  });
}

// The schedule of fully_shard: one unit for each block, or one for both.
TEST(Checkpoint, WorksWithFullyShard) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    test::Draw draw(6);
    const at::Tensor value = draw.normal({4, 3, 8});
    const auto step = [&](bool by_block, bool again, std::int64_t& scatters) {
      manual_seed(mesh, 1);
      Stack model;
      for (const auto& [name, tensor] : model.named_parameters()) {
        *tensor = at::Tensor(rand(tensor->sizes(), mesh, {Replicate()}, at::kDouble)).sub_(0.5).requires_grad_();
      }
      if (by_block) fully_shard(model.first, mesh);
      const FsdpUnit unit = fully_shard(model, mesh);
      const at::Tensor x = distribute_tensor(value, mesh, {Shard(0)}).requires_grad_();
      std::vector<at::Tensor> grads;
      for (int i = 0; i < 2; ++i) {
        const std::int64_t before = unit.stats().reduce_scatters;
        for (const at::Tensor& p : model.parameters()) p.mutable_grad().reset();
        x.mutable_grad().reset();
        const auto run = [&](nn::Block& b, const at::Tensor& t) {
          const auto body = [&b](const at::Tensor& y) { return at::dropout(b.forward(y), 0.3, true); };
          return again ? checkpoint(body, t) : body(t);
        };
        run(model.second, run(model.first, x)).square().sum().backward();
        scatters = unit.stats().reduce_scatters - before;
        grads = {DTensor(x.grad()).to_local()};
        for (const at::Tensor& p : model.parameters()) grads.push_back(DTensor(p.grad()).to_local());
      }
      return grads;
    };
    for (const bool by_block : {true, false}) {
      std::int64_t scatters = 0;
      const auto expected = step(by_block, false, scatters);
      EXPECT_EQ(scatters, by_block ? 2 : 1);
      const auto actual = step(by_block, true, scatters);
      EXPECT_EQ(scatters, by_block ? 2 : 1);  // Also for a unit of two segments, from the second step on.
      for (std::size_t i = 0; i < expected.size(); ++i) {
        test::expect_close(actual[i], expected[i], "unit per block " + std::to_string(by_block), 1e-12);
      }
    }
  });
}

// Several segments and the model itself use parameters of one unit: their gradients add up in any order.
TEST(Checkpoint, SegmentsMayShareParametersOfAUnit) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(7);
    const at::Tensor x = draw.normal({4, 6});
    std::vector<at::Tensor> regular, split;
    for (int i = 0; i < 3; ++i) regular.push_back(draw.normal({6, 6}).mul_(0.4).requires_grad_());
    for (const auto& w : regular) split.push_back(w.detach().clone().requires_grad_());
    const auto unit = fully_shard({{"a", &split[0]}, {"b", &split[1]}, {"c", &split[2]}}, mesh);
    const auto loss = [](const std::vector<at::Tensor>& w, const at::Tensor& in, bool again) {
      const auto segment = [&w, again](const at::Tensor& t, std::size_t k) {
        const auto body = [&w, k](const at::Tensor& y) { return at::gelu(at::mm(at::mm(y, w[0]), w[k])); };
        return again ? checkpoint(body, t) : body(t);
      };
      const at::Tensor y = segment(segment(at::mm(in, w[2]), 1), 2);
      return at::mm(segment(y, 1), w[0]).square().mean();
    };
    const at::Tensor on = distribute_tensor(x, mesh, {Shard(0)});
    for (int step = 0; step < 4; ++step) {
      const FsdpStats before = unit.stats();
      loss(regular, x, false).backward();
      loss(split, on, true).backward();
      for (std::size_t i = 0; i < 3; ++i) {
        test::expect_close(split[i].grad(), regular[i].grad(), c10::str("step ", step, " gradient ", i));
      }
      EXPECT_EQ(unit.stats().unreduced_bytes, 0);
      EXPECT_EQ(unit.stats().gathered_bytes, 0);
      if (step == 0) continue;
      EXPECT_EQ(unit.stats().reduce_scatters - before.reduce_scatters, 1);
      EXPECT_LE(unit.stats().all_gathers - before.all_gathers, 2);
      EXPECT_LE(unit.stats().peak_unreduced_bytes, unit.gradient_bytes());
    }
  });
}

// Eight segments of four saved activations each: only their inputs stay, and in backward the activations of one
// segment.
TEST(Checkpoint, SavesMemory) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::rand({64, 256}), mesh, {Shard(0)}).requires_grad_();
    const auto peak = [&](bool again) {
      const auto body = [](const at::Tensor& t) { return at::sigmoid(at::sigmoid(at::sigmoid(at::sigmoid(t)))); };
      const MemoryTimeline memory;
      at::Tensor y = x;
      for (int i = 0; i < 8; ++i) y = again ? checkpoint(body, y) : body(y);
      y.sum().backward();
      x.mutable_grad().reset();
      return memory.peak().bytes;
    };
    const std::int64_t activation = 32 * 256 * 4;
    EXPECT_GE(peak(false), 32 * activation);
    EXPECT_LE(peak(true), 18 * activation);
  });
}

TEST(Checkpoint, CapturedParametersUnusedResultsAndRegularTensors) {
  const at::Tensor w = at::ones({3}, at::kDouble).requires_grad_(), x = at::arange(3, at::kDouble);
  // No input requires grad, and one result is not used.
  const auto results = checkpoint(
      [&](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{in[0] * w, in[0] * w * 5};
      },
      std::vector<at::Tensor>{x});
  results[0].sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), x));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint([&](const at::Tensor& t) { return t * w; }, x).requires_grad());
}

TEST(Checkpoint, RefusesUnrepeatableSegments) {
  at::Tensor x = at::ones({3}).requires_grad_();
  const at::Tensor input = x * 2;
  const at::Tensor y = checkpoint([](const at::Tensor& t) { return t.exp(); }, input);
  input.mul_(3);
  EXPECT_ANY_THROW(y.sum().backward());
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const at::Tensor t = distribute_tensor(at::ones({2, 2}), mesh, {Replicate()}).requires_grad_();
    int call = 0;
    const auto unsteady = [&](const at::Tensor& in) {
      return call++ == 0 ? at::mm(in, in) : at::mm(at::mm(in, in), in);
    };
    const at::Tensor z = checkpoint(unsteady, t, {.keep = {"aten::mm"}});
    EXPECT_ANY_THROW(z.sum().backward());
    const auto writes = [](const at::Tensor& in) { return at::mm(in, in).mul_(2); };
    const at::Tensor changed = checkpoint(writes, t, {.keep = {"aten::mm"}});
    EXPECT_ANY_THROW(changed.sum().backward());
  });
}

// backward() may run after the scopes of forward have ended: the recomputation runs in them again.
TEST(Checkpoint, RecomputesInTheScopesOfForward) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    test::Draw draw(3);
    const at::Tensor start = draw.normal({4, 4}, at::kFloat), value = draw.normal({6, 4}, at::kFloat);
    const auto gradients = [&](bool again, bool late) {
      at::Tensor w = start.clone().requires_grad_();
      NamedTensors list{{"w", &w}};
      fully_shard(list, mesh, {.precision = {.param_dtype = at::kBFloat16}});
      const at::Tensor x = distribute_tensor(value, mesh, {Shard(1)}).requires_grad_();
      const auto body = [&](const at::Tensor& t) { return at::mm(t.to(w.scalar_type()), w).to(at::kFloat).exp(); };
      at::Tensor loss;
      {
        const ComputeScope compute(list);
        loss = (again ? checkpoint(body, x) : body(x)).sum();
        if (!late) loss.backward();
      }
      if (late) loss.backward();
      EXPECT_EQ(w.scalar_type(), at::kFloat);
      return std::make_pair(DTensor(x.grad()).full_tensor(), DTensor(w.grad()).full_tensor());
    };
    const auto expected = gradients(false, true);
    const auto late = gradients(true, true);
    EXPECT_TRUE(at::equal(late.first, expected.first));
    EXPECT_TRUE(at::equal(late.second, expected.second));
    EXPECT_TRUE(at::equal(gradients(true, false).first, gradients(false, false).first));
  });
}

TEST(Checkpoint, RecomputationWithAnotherDtypeIsAnError) {
  const at::Tensor x = at::ones({3}).requires_grad_();
  int runs = 0;
  const auto body = [&](const at::Tensor& t) { return runs++ == 0 ? t.exp() : t.to(at::kDouble).exp(); };
  const auto text = error_of([&] { checkpoint(body, x).sum().backward(); });
  EXPECT_NE(text.find("to be Float[3] as in forward, got Double[3] in recomputation"), std::string::npos) << text;
}

// Gradients of requested tensors are found if they are inputs of segments, and no .grad is accumulated.
TEST(Checkpoint, RefusesGradientsOfCapturedTensors) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(3);
    const at::Tensor value = draw.normal({4, 4}), factor = draw.normal({4, 4});
    const at::Tensor x = distribute_tensor(value, mesh, {Shard(0)}).requires_grad_();
    const at::Tensor w = distribute_tensor(factor, mesh, {Replicate()}).requires_grad_();
    const auto run = [&](const at::Tensor& in) { return at::mm(in, w).exp(); };
    const auto loss = [&] { return checkpoint(run, x * 2).sum(); };
    const at::Tensor regular = value.clone().requires_grad_();
    at::mm(regular * 2, factor).exp().sum().backward();
    test::expect_close(torch::autograd::grad({loss()}, {x})[0], regular.grad(), "grad");
    EXPECT_FALSE(w.grad().defined());
    torch::autograd::backward({loss()}, {}, false, false, {x});
    test::expect_close(x.grad(), regular.grad(), "backward with inputs");
    EXPECT_FALSE(w.grad().defined());
    const at::Tensor held = w * 1;  // Otherwise autograd has no node for the leaf and reports it as unused.
    const std::string captured = error_of([&] { torch::autograd::grad({loss()}, {x, w}); });
    EXPECT_NE(captured.find("a recomputed segment captures"), std::string::npos) << captured;
    const std::string twice = error_of([&] { torch::autograd::grad({loss()}, {x}, {}, true, true); });
    EXPECT_NE(twice.find("double backward (create_graph)"), std::string::npos) << twice;
  });
}

// A kept result may be the result of the segment, whose graph references the segment: this must not be a reference
// cycle.
TEST(Checkpoint, IsFreedWithoutBackward) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const at::Tensor t = distribute_tensor(at::ones({2, 2}), mesh, {Replicate()}).requires_grad_();
    auto token = std::make_shared<int>();
    const std::weak_ptr<int> alive = token;
    const auto segment = [held = std::move(token)](const at::Tensor& in) { return at::mm(in, in); };
    static_cast<void>(checkpoint(std::function(std::move(segment)), t, {.keep = {"aten::mm"}}));
    EXPECT_EQ(alive.use_count(), 1);  // `segment` itself, since it was copied.
  });
}

}  // namespace
