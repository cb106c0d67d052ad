// Scopes around a step affect only what its stages compute.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "dtensor/pipeline.h"
#include "dtensor/tensor.h"
#include "pipeline/microbatches.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;

struct Autocast {
  explicit Autocast(bool on) : was(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, on);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was);
  }
  bool was;
};

// A stage that computes in full precision within any scope, as routers and losses do.
at::Tensor gradient(const Communicator& world, const std::string& schedule, bool autocast) {
  Pipeline pipe(init_device_mesh(world, at::kCPU, {2}, {"pp"}), pipeline::make_schedule(schedule, 2, 2), mean_loss);
  const at::Tensor weight = Draw(world.rank() + 1).normal({4, 4}, at::kFloat).requires_grad_();
  pipe.set_stage(world.rank(), [&](const Tensors& in) {
    const Autocast off(false);
    return Tensors{at::mm(in[0], weight)};
  });
  std::vector<Tensors> batch;
  for (const at::Tensor& part : pipeline::microbatches(Draw(5).normal({4, 4}, at::kFloat), 2)) batch.push_back({part});
  const Autocast scope(autocast);
  pipe.step(batch, batch);
  return weight.grad();
}

TEST(PipelineScopes, AutocastDoesNotAffectBackward) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    run_local(2, [&](const Communicator& world) {
      EXPECT_TRUE(at::equal(gradient(world, schedule, true), gradient(world, schedule, false))) << schedule;
    });
  }
}

// Losses, norm and gradient of all functions of a pipeline.
Tensors all_calls(const DeviceMesh& mesh, bool scoped) {
  Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
  const int stage = pipe.stages()[0];
  const at::Tensor weight =
      distribute_tensor(Draw(1).normal({4, 4}), pipe.stage_mesh(), {Replicate()}).requires_grad_();
  pipe.set_stage(stage, [&](const Tensors& in) { return Tensors{at::mm(in[0], weight)}; }, {weight});
  std::vector<Tensors> batch;
  for (const at::Tensor& part : pipeline::microbatches(Draw(5).normal({4, 4}), 2)) {
    batch.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
  }
  std::optional<MeshScope> scope;
  if (scoped) scope.emplace(pipe.stage_mesh());
  pipe.tie("weight", {weight});
  const auto result = pipe.step(batch, batch);
  EXPECT_EQ(pipe.gather_actions(result.actions).size(), 2U);
  const at::Tensor evaluated = pipe.evaluate(batch, batch), norm = pipe.clip_grad_norm_(0.5);
  scope.reset();
  return {result.loss, evaluated, norm, DTensor(weight.grad()).full_tensor()};
}

TEST(PipelineScopes, MeshScopeDoesNotAffectTensorsOfPipelines) {
  run_local(4, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "dp"});
    const Tensors expected = all_calls(mesh, false), actual = all_calls(mesh, true);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  });
}

}  // namespace
}  // namespace dtensor::test
