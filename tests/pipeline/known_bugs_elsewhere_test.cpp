// Known bugs of other pipeline implementations (docs/design/pitfalls.md): one test for each row.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/events.h"
#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;
using test::parts;

// Two stages with one weight each.
struct Chain {
  at::Tensor first, second;
  explicit Chain(std::int64_t size) {
    Draw draw(3);
    first = draw.normal({size, size}).requires_grad_();
    second = draw.normal({size, size}).requires_grad_();
  }
  void set(Pipeline& pipe) {
    for (const int stage : pipe.stages()) {
      pipe.set_stage(stage, [this, stage](const Tensors& in) {
        return Tensors{stage == 0 ? at::tanh(at::matmul(in[0], first)) : at::matmul(in[0], second)};
      });
    }
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) const {
    return at::mse_loss(at::matmul(at::tanh(at::matmul(x, first)), second), y);
  }
};

// Runs steps with these shapes and compares each with one device. Gradients accumulate on both sides.
void expect_steps(const std::string& schedule, int count, const std::vector<test::Shape>& shapes) {
  run_local(2, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule(schedule, 2, count), mean_loss);
    Chain chain(4), reference(4);
    chain.set(pipe);
    Draw draw(4);
    for (const test::Shape& shape : shapes) {
      const at::Tensor x = draw.normal(shape), y = draw.normal(shape);
      const at::Tensor loss = reference.loss(x, y);
      loss.backward();
      EXPECT_NEAR(pipe.step(parts(x, count), parts(y, count)).loss.item<double>(), loss.item<double>(), 1e-12);
      const auto& own = world.rank() == 0 ? chain.first : chain.second;
      const auto& expected = world.rank() == 0 ? reference.first : reference.second;
      test::expect_close(own.grad(), expected.grad(), schedule);
    }
  });
}

TEST(PipelinePeers, UnevenMicrobatchesAreWeighted) { expect_steps("1f1b", 4, {{7, 4}}); }

TEST(PipelinePeers, SequenceLengthMayChangeBetweenSteps) { expect_steps("1f1b", 2, {{4, 3, 4}, {4, 5, 4}, {2, 1, 4}}); }

TEST(PipelinePeers, OneMicrobatchOnTwoStages) {  // torchtitan#775
  expect_steps("1f1b", 1, {{3, 4}});
  expect_steps("zb-h1", 1, {{3, 4}});
}

TEST(PipelinePeers, FailedStageIsReportedByItsNeighbor) {
  const std::string error = test::error_of([] {
    run_local(2, [](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
      Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
      pipe.set_stage(world.rank(), [&](const Tensors& in) {
        TORCH_CHECK(world.rank() == 0, "injected failure of the second stage");
        return in;
      });
      const auto x = parts(at::ones({2, 4}, at::kDouble), 2);
      pipe.step(x, x);
    });
  });
  EXPECT_NE(error.find("injected failure of the second stage"), std::string::npos) << error;
}

// pytorch/pytorch#144530: a split backward that skips the hooks which reduce gradients makes replicas diverge.
TEST(PipelinePeers, ReplicasStayEqualWithSplitBackward) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    run_local(4, [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "dp"});
      Pipeline pipe(mesh, pipeline::make_schedule(schedule, 2, 3), mean_loss);
      Chain chain(4), reference(4);
      for (at::Tensor* weight : {&chain.first, &chain.second}) {
        *weight = distribute_tensor(weight->detach(), pipe.stage_mesh(), {Replicate()}).requires_grad_();
      }
      chain.set(pipe);
      Draw draw(4);
      const at::Tensor x = draw.normal({6, 4}), y = draw.normal({6, 4});
      reference.loss(x, y).backward();
      const auto placed = [&](const at::Tensor& batch) {
        std::vector<Tensors> result;
        for (const auto& part : pipeline::microbatches(batch, 3)) {
          result.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
        }
        return result;
      };
      int reductions = 0;
      {
        const EventListener listener([&](const Event& e) { reductions += e.name == "all_reduce" && e.axis == "dp"; },
                                     {Event::Kind::collective});
        pipe.step(placed(x), placed(y));
      }
      const bool first = mesh.local_rank("pp") == 0;
      test::expect_close((first ? chain.first : chain.second).grad(),
                         (first ? reference.first : reference.second).grad(), schedule);
      // One reduces the weight's gradient over all microbatches. The ranks of the last stage also agree before they
      // count valid targets, and reduce the reported loss.
      EXPECT_EQ(reductions, first ? 1 : 3) << schedule;
    });
  }
}

TEST(PipelinePeers, LossScaleReachesEveryStage) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 3), mean_loss);
    Chain chain(4), reference(4);
    chain.set(pipe);
    Draw draw(4);
    const at::Tensor x = draw.normal({5, 4}), y = draw.normal({5, 4});
    const at::Tensor loss = reference.loss(x, y);
    (loss * 8).backward();
    EXPECT_NEAR(pipe.step(parts(x, 3), parts(y, 3), {.loss_scale = 8}).loss.item<double>(), loss.item<double>(), 1e-12);
    const bool first = world.rank() == 0;
    test::expect_close((first ? chain.first : chain.second).grad(), (first ? reference.first : reference.second).grad(),
                       "scaled");
  });
}

// pytorch/pytorch#185331: state of a step must not affect the next one.
TEST(PipelinePeers, ReceivedTensorsKeepNoHooksOfEarlierSteps) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
    Chain chain(4);
    int calls = 0;
    pipe.set_stage(world.rank(), [&](const Tensors& in) {
      if (world.rank() == 0) return Tensors{at::matmul(in[0], chain.first)};
      in[0].register_hook([&calls](const at::Tensor&) { ++calls; });
      return Tensors{at::matmul(in[0], chain.second)};
    });
    const auto x = parts(at::ones({2, 4}, at::kDouble), 2);
    for (int step = 1; step <= 3; ++step) {
      pipe.step(x, x);
      EXPECT_EQ(calls, world.rank() == 1 ? 2 * step : 0);
    }
  });
}

// pytorch/torchtitan#2972: the loss is a mean over valid targets, not over microbatches. One microbatch has three, one
// has none.
TEST(PipelinePeers, LossIsTheMeanOverValidTargets) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    const auto loss_of = [](const Tensors& outputs, const Tensors& targets) {
      return at::cross_entropy_loss(outputs[0], targets[0], {}, at::Reduction::Mean, -100);
    };
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 3), loss_of, {.weight = pipeline::valid_targets()});
    Chain chain(4), reference(4);
    chain.set(pipe);
    Draw draw(4);
    const at::Tensor x = draw.normal({9, 4}), y = at::tensor({1, 2, 0, -100, -100, -100, 3, -100, 1}, at::kLong);
    const at::Tensor loss = loss_of({at::matmul(at::tanh(at::matmul(x, reference.first)), reference.second)}, {y});
    loss.backward();
    EXPECT_NEAR(pipe.step(parts(x, 3), parts(y, 3)).loss.item<double>(), loss.item<double>(), 1e-12);
    const bool first = world.rank() == 0;
    test::expect_close((first ? chain.first : chain.second).grad(), (first ? reference.first : reference.second).grad(),
                       "valid targets");
  });
}

// pytorch/pytorch#181365, #180952: a hook on a weight that is used twice in its stage.
TEST(PipelinePeers, SplitBackwardRunsHooksOfASharedWeightOnce) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("zb-h1", 2, 3), mean_loss);
    const auto twice = [](const at::Tensor& in, const at::Tensor& w) {
      return at::matmul(at::tanh(at::matmul(in, w)), w);
    };
    Chain chain(4), reference(4);
    const at::Tensor& weight = world.rank() == 0 ? chain.first : chain.second;
    int hooks = 0;
    weight.register_hook([&](const at::Tensor&) { ++hooks; });
    pipe.set_stage(world.rank(), [&](const Tensors& in) { return Tensors{twice(in[0], weight)}; });
    Draw draw(4);
    const at::Tensor x = draw.normal({6, 4}), y = draw.normal({6, 4});
    at::mse_loss(twice(twice(x, reference.first), reference.second), y).backward();
    pipe.step(parts(x, 3), parts(y, 3));
    test::expect_close(weight.grad(), (world.rank() == 0 ? reference.first : reference.second).grad(), "shared");
    EXPECT_EQ(hooks, 3);  // Once for each microbatch.
  });
}

// pytorch/pytorch#127964, #184361: the output of the first stage skips the second, as do the rotary positions.
TEST(PipelinePeers, SkipConnectionsAndPositionsArePassedThrough) {
  run_local(3, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 3, 2), mean_loss);
    const auto rotate = [](const at::Tensor& x, const at::Tensor& positions) {
      return x * at::cos(positions.to(at::kDouble)).unsqueeze(-1);
    };
    Chain chain(4), reference(4);
    pipe.set_stage(world.rank(), [&](const Tensors& in) {
      if (world.rank() == 0) return Tensors{rotate(at::matmul(in[0], chain.first), in[1]), in[1], in[0] * 2};
      if (world.rank() == 1) return Tensors{rotate(at::matmul(in[0], chain.second), in[1]), in[2]};
      return Tensors{in[0] + in[1]};
    });
    Draw draw(4);
    const at::Tensor x = draw.normal({4, 4}), y = draw.normal({4, 4}), positions = at::arange(4);
    const at::Tensor one = rotate(at::matmul(x, reference.first), positions);
    const at::Tensor loss = at::mse_loss(rotate(at::matmul(one, reference.second), positions) + x * 2, y);
    loss.backward();
    const std::vector<Tensors> inputs{{x.narrow(0, 0, 2), positions.narrow(0, 0, 2)},
                                      {x.narrow(0, 2, 2), positions.narrow(0, 2, 2)}};
    EXPECT_NEAR(pipe.step(inputs, parts(y, 2)).loss.item<double>(), loss.item<double>(), 1e-12);
    if (world.rank() == 0) test::expect_close(chain.first.grad(), reference.first.grad(), "first");
    if (world.rank() == 1) test::expect_close(chain.second.grad(), reference.second.grad(), "second");
  });
}

// A split backward also computes gradients of the batch.
TEST(PipelinePeers, InputsThatRequireGradGetGradients) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    run_local(2, [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
      Pipeline pipe(mesh, pipeline::make_schedule(schedule, 2, 2), mean_loss);
      Chain chain(4), reference(4);
      chain.set(pipe);
      Draw draw(4);
      const at::Tensor x = draw.normal({4, 4}), y = draw.normal({4, 4}), full = x.clone().requires_grad_();
      for (int step = 0; step < 2; ++step) reference.loss(full, y).backward();
      auto inputs = parts(x, 2);
      for (Tensors& input : inputs) input[0] = input[0].clone().requires_grad_();
      for (int step = 0; step < 2; ++step) pipe.step(inputs, parts(y, 2));
      for (std::int64_t m = 0; m < 2 && world.rank() == 0; ++m) {
        const at::Tensor& gradient = inputs[static_cast<std::size_t>(m)][0].grad();
        test::expect_close(gradient, full.grad().narrow(0, 2 * m, 2), schedule);
      }
    });
  }
}

// NVIDIA-NeMo/Automodel#3530: accumulated gradients are kept if a stage is set again.
TEST(PipelinePeers, SettingAStageAgainKeepsGradients) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
    Chain chain(4), reference(4);
    Draw draw(4);
    for (int step = 0; step < 2; ++step) {
      chain.set(pipe);
      const at::Tensor x = draw.normal({4, 4}), y = draw.normal({4, 4});
      reference.loss(x, y).backward();
      pipe.step(parts(x, 2), parts(y, 2));
    }
    const bool first = world.rank() == 0;
    test::expect_close((first ? chain.first : chain.second).grad(), (first ? reference.first : reference.second).grad(),
                       "accumulated");
  });
}

// pytorch/torchtitan#4312: norms that are summed in different orders make loss curves diverge.
TEST(PipelinePeers, ClipNormIsBitEqualForAnyNumberOfStages) {
  Draw draw(6);
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 6; ++i) weights.push_back(draw.normal({7, 5 + i}, at::kFloat));
  std::vector<at::Tensor> flat, clipped;
  for (const at::Tensor& weight : weights) flat.push_back(weight.to(at::kDouble).flatten());
  const double expected = at::linalg_vector_norm(at::cat(flat)).item<double>();
  double norm = 0;
  for (const int ranks : {1, 2, 3, 6}) {
    std::vector<at::Tensor> results(weights.size());
    run_local(2 * ranks, [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks, 2}, {"pp", "shard"});
      Pipeline pipe(mesh, pipeline::make_schedule("1f1b", ranks, 2), mean_loss);
      const auto stage = static_cast<std::size_t>(pipe.stages()[0]);
      const std::size_t each = weights.size() / static_cast<std::size_t>(ranks);
      std::vector<at::Tensor> own;
      for (std::size_t i = stage * each; i < (stage + 1) * each; ++i) {
        own.push_back(distribute_tensor(weights[i], pipe.stage_mesh(), {Shard(0)}).requires_grad_());
        own.back().mutable_grad() = own.back().detach().clone();
      }
      pipe.set_stage(
          static_cast<int>(stage), [](const Tensors& in) { return in; }, own);
      const double total = pipe.clip_grad_norm_(1).item<double>();
      if (ranks == 1 && world.rank() == 0) norm = total;
      world.barrier();
      EXPECT_EQ(total, norm) << ranks;  // Bit-equal.
      EXPECT_NEAR(total, expected, 1e-9);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const at::Tensor full = DTensor(own[i].grad()).full_tensor();
        if (mesh.local_rank("shard") == 0) results[stage * each + i] = full;
      }
    });
    if (ranks == 1) clipped = results;
    for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(at::equal(results[i], clipped[i])) << ranks;
  }
}

}  // namespace
}  // namespace dtensor
