// Inputs of stage 0 that require grad: the batch is a leaf of the step's graph.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/pipeline.h"
#include "dtensor/random.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;

constexpr std::int64_t kSize = 4;
constexpr int kMicrobatches = 3;
const char* const kSchedules[] = {"1f1b", "zb-h1"};  // A full backward and a split one.

// One stage on one pipeline rank, on `tp` ranks of the other axis: a product with a weight that is split over them.
void on_one_stage(const std::string& schedule, int tp,
                  const std::function<void(Pipeline& pipe, const at::Tensor& weight)>& body) {
  run_local(tp, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1, tp}, {"pp", "tp"});
    Pipeline pipe(mesh, pipeline::make_schedule(schedule, 1, kMicrobatches), mean_loss);
    Draw draw(2);
    body(pipe, distribute_tensor(draw.normal({kSize, kSize}), pipe.stage_mesh(), {Shard(1)}).requires_grad_());
  });
}

at::Tensor rows_on(const Pipeline& pipe, Draw& draw) {
  return distribute_tensor(draw.normal({2, kSize}), pipe.stage_mesh(), {Replicate()});
}

std::vector<Tensors> targets_on(const Pipeline& pipe, Draw& draw) {
  std::vector<Tensors> targets;
  for (int m = 0; m < kMicrobatches; ++m) targets.push_back({rows_on(pipe, draw)});
  return targets;
}

// Autograd passes one gradient tensor to both summands.
TEST(PipelineInputs, GradientsOfTwoInputsShareNoMemory) {
  for (const std::string schedule : kSchedules) {
    on_one_stage(schedule, 1, [&](Pipeline& pipe, const at::Tensor& weight) {
      Draw draw(3);
      pipe.set_stage(0, [&](const Tensors& in) { return Tensors{at::mm(in[0] + in[1], weight)}; });
      std::vector<Tensors> inputs;
      for (int m = 0; m < kMicrobatches; ++m)
        inputs.push_back({rows_on(pipe, draw).requires_grad_(), rows_on(pipe, draw).requires_grad_()});
      const auto targets = targets_on(pipe, draw);
      pipe.step(inputs, targets);
      const at::Tensor once = DTensor(inputs[0][0].grad()).full_tensor().clone();
      pipe.step(inputs, targets);
      for (const at::Tensor& input : inputs[0]) test::expect_close(input.grad(), once * 2, schedule);
    });
  }
}

// One tensor is two inputs of each microbatch.
TEST(PipelineInputs, RepeatedInputAccumulatesItsGradients) {
  for (const std::string schedule : kSchedules) {
    on_one_stage(schedule, 1, [&](Pipeline& pipe, const at::Tensor& weight) {
      Draw draw(3);
      pipe.set_stage(0, [&](const Tensors& in) { return Tensors{at::mm(in[0] * in[1], weight)}; });
      const at::Tensor x = rows_on(pipe, draw).requires_grad_(), y = rows_on(pipe, draw);
      pipe.step(std::vector<Tensors>(kMicrobatches, {x, x}), std::vector<Tensors>(kMicrobatches, {y}));
      const at::Tensor regular = DTensor(x.detach()).full_tensor().clone().requires_grad_();
      const at::Tensor out = at::mm(regular * regular, DTensor(weight.detach()).full_tensor());
      at::mse_loss(out, DTensor(y).full_tensor()).backward();
      test::expect_close(x.grad(), regular.grad(), schedule);
    });
  }
}

// As without a pipeline: the Partial gradient of a column-wise weight is reduced in every microbatch, not only in the
// last.
TEST(PipelineInputs, GradientsHaveThePlacementsOfTheirInputs) {
  for (const std::string schedule : kSchedules) {
    on_one_stage(schedule, 2, [&](Pipeline& pipe, const at::Tensor& weight) {
      Draw draw(3);
      pipe.set_stage(0, [&](const Tensors& in) { return Tensors{at::mm(in[0], weight)}; });
      std::vector<Tensors> inputs;
      for (int m = 0; m < kMicrobatches; ++m) inputs.push_back({rows_on(pipe, draw).requires_grad_(), at::Tensor()});
      const auto targets = targets_on(pipe, draw);
      for (int step = 0; step < 2; ++step) pipe.step(inputs, targets);
      for (const Tensors& input : inputs) {
        EXPECT_EQ(DTensor(input[0].grad()).placements(), Placements{Replicate()}) << schedule;
      }
    });
  }
}

// Evaluation computes no gradients, so inputs need not be leaves.
TEST(PipelineInputs, MayBeResultsOfOperatorsInEvaluation) {
  on_one_stage("1f1b", 1, [](Pipeline& pipe, const at::Tensor& weight) {
    pipe.set_stage(0, [&](const Tensors& in) { return Tensors{at::mm(in[0], weight)}; });
    Draw draw(3);
    const auto targets = targets_on(pipe, draw);
    std::vector<Tensors> inputs;
    for (const Tensors& target : targets) inputs.push_back({at::mm(target[0], weight)});
    EXPECT_FALSE(pipe.evaluate(inputs, targets).requires_grad());
    const std::string error = test::error_of([&] { pipe.step(inputs, targets); });
    EXPECT_NE(error.find("requires a gradient and is the result of operators"), std::string::npos) << error;
  });
}

// If the first inputs are undefined or scalars, the number of rows is that of the next input. It determines the random
// numbers of dropout.
TEST(PipelineInputs, NumberOfRowsIsThatOfTheFirstInputWithRows) {
  on_one_stage("1f1b", 2, [](Pipeline& pipe, const at::Tensor& weight) {
    pipe.set_stage(0, [&](const Tensors& in) { return Tensors{at::dropout(at::mm(in.back(), weight), 0.5, true)}; });
    Draw draw(3);
    const std::vector<Tensors> alone = targets_on(pipe, draw), targets = targets_on(pipe, draw);
    const auto loss_with = [&](const Tensors& before) {
      std::vector<Tensors> inputs;
      for (const Tensors& input : alone) {
        inputs.push_back(before);
        inputs.back().push_back(input[0]);
      }
      manual_seed(pipe.stage_mesh(), 7);
      return pipe.evaluate(inputs, targets).item<double>();
    };
    const double expected = loss_with({});
    EXPECT_EQ(loss_with({at::Tensor()}), expected);
    EXPECT_EQ(loss_with({at::scalar_tensor(3)}), expected);
  });
}

}  // namespace
}  // namespace dtensor
