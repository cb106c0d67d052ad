// Peak memory of a step: activations as in the schedule's table, and one set of gradients for any number of
// microbatches. Nothing stays allocated.
#include "dtensor/debug.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/pipeline.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;

constexpr std::int64_t kSmall = std::int64_t{1} << 14;  // More than all scalars and headers of a step.

at::Tensor mean_loss(const Tensors& outputs, const Tensors&) { return outputs[0].mean(); }  // Saves nothing.

// Each stage saves its result for backward, and its input, which is the received message.
Tensors keep_result(const Tensors& in) { return {at::exp(in[0])}; }

TEST(PipelineMemory, ActivationsMatchTheTableOfTheSchedule) {
  constexpr std::int64_t kRows = 1 << 14, kMessage = kRows * 8;
  for (const std::string name : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int ranks : {2, 3}) {
      for (const int count : {2, 8}) {
        run_local(ranks, [&](const Communicator& world) {
          const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks}, {"pp"});
          Pipeline pipe(mesh, pipeline::make_schedule(name, ranks, count), mean_loss);
          pipe.set_stage(world.rank(), keep_result);
          std::vector<Tensors> inputs, targets;
          for (int m = 0; m < count; ++m) {
            inputs.push_back({at::zeros({kRows}, at::kDouble).requires_grad_()});
            targets.push_back({at::zeros({kRows}, at::kDouble)});
          }
          pipe.step(inputs, targets);
          world.barrier();
          for (auto& input : inputs) input[0].mutable_grad() = at::zeros_like(input[0]);
          const MemoryTimeline timeline;
          pipe.step(inputs, targets);
          const auto live = pipeline::live_activations(pipe.schedule())[static_cast<std::size_t>(world.rank())];
          const std::int64_t held = world.rank() == 0 ? 1 : 2;  // The result and the received input.
          const std::string what = c10::str(name, " ", ranks, " ranks, ", count, " microbatches, rank ", world.rank());
          if (name != "zb-h1") {  // Its microbatches free early what only gradients of inputs need.
            EXPECT_GE(timeline.peak().bytes, live * held * kMessage) << what;
          }
          // In addition: a received gradient, the gradient computed from it, the gradient of a loss, and a message in
          // flight.
          EXPECT_LE(timeline.peak().bytes, (live * held + 5) * kMessage + kSmall) << what;
        });
      }
    }
  }
}

// The last stage of two receives its inputs: it stores one microbatch at a time.
TEST(PipelineMemory, EvaluationStoresOneMicrobatch) {
  constexpr std::int64_t kRows = 1 << 14, kMessage = kRows * 8;
  for (const std::string name : {"1f1b", "zb-h1"}) {
    std::vector<std::int64_t> peaks;
    for (const int count : {2, 16}) {
      std::int64_t peak = 0;
      run_local(2, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
        Pipeline pipe(mesh, pipeline::make_schedule(name, 2, count), mean_loss);
        for (const int stage : pipe.stages()) pipe.set_stage(stage, keep_result);
        const std::vector<Tensors> parts(static_cast<std::size_t>(count), {at::zeros({kRows}, at::kDouble)});
        pipe.evaluate(parts, parts);
        world.barrier();
        const MemoryTimeline timeline;
        pipe.evaluate(parts, parts);
        if (world.rank() == 1) peak = timeline.peak().bytes;
      });
      peaks.push_back(peak);
    }
    // Messages that rank 0 has sent ahead wait on rank 0. Rank 1 stores a message and the result computed from it.
    EXPECT_LE(peaks[1], peaks[0] + 2 * kMessage + kSmall) << name;
  }
}

std::int64_t peak_of_step(const std::string& schedule, int count, bool recompute) {
  constexpr std::int64_t kSize = 256;
  std::int64_t peak = 0;
  run_local(2, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule(schedule, 2, count), mean_loss);
    const at::Tensor weight = at::ones({kSize, kSize}, at::kDouble).requires_grad_();
    pipe.set_stage(world.rank(),
                   [&](const Tensors& in) {
                     const auto run = [&](const at::Tensor& x) { return at::tanh(at::mm(x, weight)); };
                     return Tensors{recompute ? checkpoint(run, in[0]) : run(in[0])};
                   },
                   {weight});
    std::vector<Tensors> parts;
    for (int m = 0; m < count; ++m) parts.push_back({at::ones({1, kSize}, at::kDouble)});
    for (int step = 0; step < 4; ++step) {
      const MemoryTimeline timeline;
      pipe.step(parts, parts);
      weight.mutable_grad().reset();
      if (step == 3) {
        EXPECT_LE(timeline.live(), kSmall) << schedule;  // Nothing stays allocated (pytorch#136766).
      }
      if (step == 3 && world.rank() == 1) peak = timeline.peak().bytes;
    }
  });
  return peak;
}

// marin-community/marin#6532: a split backward that keeps a copy of the weight gradients for each microbatch.
TEST(PipelineMemory, GradientsDoNotDependOnTheNumberOfMicrobatches) {
  constexpr std::int64_t kWeight = 256 * 256 * 8, kActivations = 16 * 4 * 256 * 8;
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const bool recompute : {false, true}) {
      const auto few = peak_of_step(schedule, 2, recompute), many = peak_of_step(schedule, 16, recompute);
      EXPECT_GE(few, 2 * kWeight) << schedule;  // The sum and the gradient that is added.
      EXPECT_LE(many, few + kActivations) << schedule << " " << recompute;
      EXPECT_LE(many, 3 * kWeight) << schedule << " " << recompute;
    }
  }
}

}  // namespace
}  // namespace dtensor
