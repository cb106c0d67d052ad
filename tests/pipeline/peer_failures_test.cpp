// What peers' pipelines get wrong (docs/design/pitfalls.md): each row a test.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/events.h"
#include "dtensor/pipeline.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;

at::Tensor mean_loss(const Tensors& outputs, const Tensors& targets) { return at::mse_loss(outputs[0], targets[0]); }

// Two stages, a weight each.
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

std::vector<Tensors> parts(const at::Tensor& batch, int count) {
  std::vector<Tensors> result;
  for (const at::Tensor& part : pipeline::microbatches(batch, count)) result.push_back({part});
  return result;
}

// Steps of these shapes in a row, each compared with one device. Gradients accumulate on both sides.
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

TEST(PipelinePeers, ABatchOfSevenInFourIsNoMeanOfUnequalMeans) { expect_steps("1f1b", 4, {{7, 4}}); }

TEST(PipelinePeers, TheSequenceMayChangeEveryStep) { expect_steps("1f1b", 2, {{4, 3, 4}, {4, 5, 4}, {2, 1, 4}}); }

TEST(PipelinePeers, OneMicrobatchOnTwoStages) {  // torchtitan#775
  expect_steps("1f1b", 1, {{3, 4}});
  expect_steps("zb-h1", 1, {{3, 4}});
}

TEST(PipelinePeers, TheNeighbourOfAStageThatThrowsSaysWhy) {
  const std::string error = test::error_of([] {
    run_local(2, [](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
      Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
      pipe.set_stage(world.rank(), [&](const Tensors& in) {
        TORCH_CHECK(world.rank() == 0, "the second stage is out of order");
        return in;
      });
      const auto x = parts(at::ones({2, 4}, at::kDouble), 2);
      pipe.step(x, x);
    });
  });
  EXPECT_NE(error.find("the second stage is out of order"), std::string::npos) << error;
}

// pytorch/pytorch#144530: a split backward that skips the hooks which reduce gradients lets replicas part.
TEST(PipelinePeers, ReplicasOfASplitBackwardStayEqual) {
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
      // One for the weight's gradient over all microbatches; the last stage's loss is reduced for the user too.
      EXPECT_EQ(reductions, first ? 1 : 2) << schedule;
    });
  }
}

TEST(PipelinePeers, TheLossScaleReachesEveryStage) {
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

// pytorch/pytorch#185331: what a step leaves behind must not reach the next.
TEST(PipelinePeers, ReceivedTensorsKeepNoHooksOfTheStepBefore) {
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

}  // namespace
}  // namespace dtensor
