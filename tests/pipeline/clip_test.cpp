// The norm over all stages equals that of the parameters on one device.
#include "dtensor/optim/clip.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Schedule;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;
using test::parts;

constexpr double kMaxNorm = 0.1;

Tensors pass(const Tensors& in) { return in; }

at::Tensor with_gradient(const at::Tensor& gradient) {
  const at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

// In a V-shaped schedule the first and the last stage are on one rank, where a tied embedding and head are one tensor.
TEST(PipelineClip, ParameterOfTwoStagesCountsOnce) {
  for (const int ranks : {1, 2}) {
    for (const bool tied : {false, true}) {
      run_local(ranks, [&](const Communicator& world) {
        const std::string what = c10::str(ranks, " ranks, tied ", tied);
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks}, {"pp"});
        Pipeline pipe(mesh, pipeline::make_schedule("zbv", ranks, 2), mean_loss);
        Draw draw(1);
        const at::Tensor shared = with_gradient(draw.normal({3, 3})), other = with_gradient(draw.normal({5}));
        const at::Tensor of_shared = shared.grad().clone(), of_other = other.grad().clone();
        const bool has_shared = world.rank() == 0;
        for (const int stage : pipe.stages()) {
          const bool outer = stage == 0 || stage == pipe.last_stage();
          pipe.set_stage(stage, pass, outer ? Tensors{shared} : stage == 1 ? Tensors{other} : Tensors{});
        }
        if (tied) pipe.tie("shared", has_shared ? Tensors{shared, shared} : Tensors{});
        Tensors expected{with_gradient(of_shared)};
        if (ranks == 2) expected.push_back(with_gradient(of_other));
        const double norm = clip_grad_norm_(expected, kMaxNorm).item<double>();
        EXPECT_NEAR(pipe.clip_grad_norm_(kMaxNorm).item<double>(), norm, 1e-12) << what;
        if (has_shared) test::expect_close(shared.grad(), expected[0].grad(), what);
        if (world.rank() == 1) test::expect_close(other.grad(), expected[1].grad(), what);
      });
    }
  }
}

// The sum depends on the order: 1e16 + 1 + 1 differs from 1 + 1 + 1e16 in double.
TEST(PipelineClip, FirstCopyInTheModelCountsOnAnyRank) {
  const auto norm_on = [](int ranks, const std::string& schedule) {
    double norm = 0;
    run_local(ranks, [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks}, {"pp"});
      Pipeline pipe(mesh, Schedule::parse(schedule), mean_loss);
      const auto parameter = [](double gradient) { return with_gradient(at::full({1}, gradient, at::kDouble)); };
      Tensors copies;
      for (const int stage : pipe.stages()) {
        copies.push_back(parameter(1e8));
        const at::Tensor& copy = copies.back();
        const auto own = stage == 0 ? Tensors{copy, parameter(1)} : Tensors{parameter(1), copy};
        pipe.set_stage(stage, pass, own);
      }
      pipe.tie("copies", copies);
      const auto found = pipe.clip_grad_norm_(1).item<double>();
      if (world.rank() == 0) norm = found;
    });
    return norm;
  };
  const double together = norm_on(1, "0F0 1F0 1B0 0B0");
  EXPECT_EQ(norm_on(2, "0F0 0B0\n1F0 1B0"), together);
  EXPECT_EQ(norm_on(2, "1F0 1B0\n0F0 0B0"), together);
}

TEST(PipelineClip, UnsetStageIsNamedOnEveryRank) {
  std::atomic<int> refused = 0;
  run_local(2, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
    if (world.rank() == 0) pipe.set_stage(0, pass, {with_gradient(at::ones({3}))});
    const auto error = test::error_of([&] { pipe.clip_grad_norm_(kMaxNorm); });
    EXPECT_NE(error.find("needs the parameters of stage 1"), std::string::npos) << error;
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

// The mesh is on part of the world; the other ranks run the same program.
TEST(PipelineClip, RanksOutsideTheMeshDoNotParticipate) {
  run_local(3, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
    const at::Tensor weight = at::ones({2}, at::kDouble).requires_grad_();
    for (const int stage : pipe.stages())
      pipe.set_stage(stage, [&](const Tensors& in) { return Tensors{in[0] * weight}; }, {weight});
    pipe.tie("weight", pipe.stages().empty() ? Tensors{} : Tensors{weight});
    const std::vector<Tensors> parts(2, {at::full({1, 2}, 3, at::kDouble)});
    const auto result = pipe.step(parts, parts);
    pipe.set_placeholder_gradients({weight});
    EXPECT_EQ(pipe.clip_grad_norm_(kMaxNorm).defined(), mesh.is_member());
    EXPECT_EQ(pipe.gather_actions(result.actions).size(), mesh.is_member() ? 2 : 0);
  });
}

// Each rank of `shape` = {pp, inner} clips the parameters of its stage. Checks the norm on all ranks and the clipped
// gradients.
void expect_norm(double expected, const std::function<Tensors(const DeviceMesh& slice, int stage)>& parameters_of) {
  const RunOptions soon{.timeout = std::chrono::seconds(10)};
  run_local(
      4,
      [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "inner"});
        Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
        const int stage = pipe.stages()[0];
        const Tensors own = parameters_of(pipe.stage_mesh(), stage);
        pipe.set_stage(stage, pass, own);
        EXPECT_NEAR(pipe.clip_grad_norm_(expected / 2).item<double>(), expected, 1e-9) << "stage " << stage;
        for (const at::Tensor& p : own) {
          if (p.grad().defined() && (!is_dtensor(p) || DTensor(p).mesh().is_member()))
            test::expect_close(p.grad(), at::full(p.sizes(), 1.5, at::kDouble), "clipped", 1e-5);
        }
      },
      soon);
}

at::Tensor threes_on(const DeviceMesh& mesh, std::int64_t count) {
  const at::Tensor p = distribute_tensor(at::zeros({count}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
  p.mutable_grad() = distribute_tensor(at::full({count}, 3, at::kDouble), mesh, {Shard(0)});
  return p;
}
at::Tensor threes(std::int64_t count) { return with_gradient(at::full({count}, 3, at::kDouble)); }

// Ranks of the other stage take part neither in its norm nor in the comparison of its regular parameters.
TEST(PipelineClip, RegularParametersAmongDTensorsBelongToTheirStage) {
  expect_norm(6, [](const DeviceMesh& slice, int stage) {
    return stage == 0 ? Tensors{threes_on(slice, 2), threes(1)} : Tensors{threes_on(slice, 1)};
  });
  expect_norm(6, [](const DeviceMesh& slice, int stage) {
    return stage == 0 ? Tensors{threes_on(slice, 1), threes(1)} : Tensors{threes(1), threes_on(slice, 1)};
  });
}

// With or without a gradient on ranks outside, which may not run the operators that use the parameter.
TEST(PipelineClip, ParametersOnSomeRanksOfAStageCountOnAllRanks) {
  for (const bool handles : {true, false}) {
    expect_norm(6, [&](const DeviceMesh& slice, int stage) {
      const DeviceMesh one = device_mesh(slice.world(), at::kCPU, {slice.ranks()[0]}, {1});
      const at::Tensor p = threes_on(one, stage == 0 ? 3 : 1);
      if (!handles && !one.is_member()) p.mutable_grad().reset();
      return Tensors{p};
    });
  }
}

}  // namespace
}  // namespace dtensor
