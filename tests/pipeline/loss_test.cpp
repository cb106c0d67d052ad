// The loss function is called with each microbatch, and the total equals the loss of one device.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "dtensor/pipeline.h"
#include "dtensor/random.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;

constexpr int kMicrobatches = 3;

std::vector<Tensors> parts_on(const DeviceMesh& mesh, const at::Tensor& batch) {
  std::vector<Tensors> parts;
  for (const at::Tensor& part : pipeline::microbatches(batch, kMicrobatches))
    parts.push_back({distribute_tensor(part, mesh, {Shard(0)})});
  return parts;
}

// A loss with dropout of the outputs.
at::Tensor noisy_loss(const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(at::dropout(outputs[0], 0.5, true), targets[0]);
}

struct Trained {
  std::vector<double> losses;
  at::Tensor gradient;
  std::uint64_t random_operators = 0;
};

Trained on_one_device(const at::Tensor& x, const at::Tensor& y, int steps) {
  Trained trained;
  run_local(1, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1}, {"one"});
    manual_seed(mesh, 5);
    const auto placed = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}); };
    const at::Tensor weight = placed(at::ones({4}, at::kDouble)).requires_grad_();
    for (int step = 0; step < steps; ++step) {
      const at::Tensor loss = noisy_loss({at::dropout(placed(x) * weight, 0.2, true)}, {placed(y)});
      loss.backward();
      trained.losses.push_back(loss.item<double>());
    }
    trained.gradient = DTensor(weight.grad()).full_tensor();
    trained.random_operators = get_rng_state(mesh).counter;
  });
  return trained;
}

TEST(PipelineLoss, RandomNumbersMatchSingleDevice) {
  constexpr int kSteps = 2;
  Draw draw(1);
  const at::Tensor x = draw.normal({8, 4}), y = draw.normal({8, 4});
  const Trained expected = on_one_device(x, y, kSteps);
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    run_local(4, [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "dp"});
      Pipeline pipe(mesh, pipeline::make_schedule(schedule, 2, kMicrobatches), noisy_loss);
      manual_seed(mesh, 5);
      const int stage = pipe.stages()[0];
      const at::Tensor ones = at::ones({4}, at::kDouble);
      const at::Tensor weight = distribute_tensor(ones, pipe.stage_mesh(), {Replicate()}).requires_grad_();
      pipe.set_stage(stage, [&, stage](const Tensors& in) {
        return stage == 0 ? Tensors{at::dropout(in[0] * weight, 0.2, true)} : in;
      });
      for (int step = 0; step < kSteps; ++step) {
        const auto result = pipe.step(parts_on(pipe.stage_mesh(), x), parts_on(pipe.stage_mesh(), y));
        EXPECT_NEAR(result.loss.item<double>(), expected.losses[static_cast<std::size_t>(step)], 1e-12) << schedule;
      }
      EXPECT_EQ(get_rng_state(mesh).counter, expected.random_operators) << schedule;
      if (stage == 0) test::expect_close(weight.grad(), expected.gradient, schedule);
    });
  }
}

// Without a weight, losses of microbatches are added: here sums of the squares, divided by their number in the batch.
TEST(PipelineLoss, IsASumWithoutWeight) {
  Draw draw(1);
  const at::Tensor x = draw.normal({8, 4}), y = draw.normal({8, 4}), ones = at::ones({4}, at::kDouble);
  const at::Tensor alone = ones.clone().requires_grad_(), expected = at::mse_loss(x * alone, y);
  expected.backward();
  run_local(4, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "dp"});
    const auto part = [&](const Tensors& outputs, const Tensors& targets) {
      return at::mse_loss(outputs[0], targets[0], at::Reduction::Sum) / static_cast<double>(x.numel());
    };
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, kMicrobatches), part, {.weight = {}});
    const int stage = pipe.stages()[0];
    const at::Tensor weight = distribute_tensor(ones, pipe.stage_mesh(), {Replicate()}).requires_grad_();
    pipe.set_stage(stage, [&, stage](const Tensors& in) { return stage == 0 ? Tensors{in[0] * weight} : in; });
    const auto result = pipe.step(parts_on(pipe.stage_mesh(), x), parts_on(pipe.stage_mesh(), y));
    EXPECT_NEAR(result.loss.item<double>(), expected.item<double>(), 1e-12);
    if (stage == 0) test::expect_close(weight.grad(), alone.grad(), "gradient");
  });
}

// A loss with one element may have any number of dimensions.
TEST(PipelineLoss, MayHaveDimensionsOfSizeOne) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1, 2}, {"pp", "dp"});
    const auto loss = [](const Tensors& outputs, const Tensors& targets) {
      return at::mse_loss(outputs[0], targets[0]).reshape({1, 1});
    };
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 1, kMicrobatches), loss);
    pipe.set_stage(0, [](const Tensors& in) { return in; });
    Draw draw(1);
    const at::Tensor x = draw.normal({8, 4}), y = draw.normal({8, 4});
    const auto result = pipe.step(parts_on(pipe.stage_mesh(), x), parts_on(pipe.stage_mesh(), y));
    EXPECT_EQ(result.loss.dim(), 0);
    EXPECT_NEAR(result.loss.item<double>(), at::mse_loss(x, y).item<double>(), 1e-12);
  });
}

}  // namespace
}  // namespace dtensor
