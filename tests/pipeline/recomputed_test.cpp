// Stages with recomputed segments, in full and in split backwards: gradients are reduced once, by the last pass that
// computes them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/fully_shard.h"
#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;

constexpr std::int64_t kSize = 4;
constexpr int kMicrobatches = 4;

// The segments of a stage that are recomputed: none, those of some microbatches, or all.
enum class Recompute { none, some, all };

struct Trial {
  std::string schedule;
  bool sharded, reported;
  Recompute again;
  std::string str() const {
    return c10::str(schedule, sharded ? ", sharded" : ", unsharded",
                    reported ? ", with parameters" : ", without parameters", ", recompute ", static_cast<int>(again));
  }
};

at::Tensor placed_weight(const at::Tensor& full, const DeviceMesh& mesh, bool sharded) {
  if (!sharded) return distribute_tensor(full, mesh, {Replicate()}).requires_grad_();
  at::Tensor weight = full.clone().requires_grad_();
  fully_shard(NamedTensors{{"w", &weight}}, mesh, {.shard_axes = {"shard"}});
  return weight;
}

Tensors layer(const at::Tensor& x, const at::Tensor& weight, bool again) {
  const auto run = [&weight](const at::Tensor& in) { return at::tanh(at::mm(in, weight)); };
  return {again ? checkpoint(run, x) : run(x)};
}

void run_trial(const Trial& trial, const Communicator& world) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "shard"});
  const auto schedule = pipeline::make_schedule(trial.schedule, 2, kMicrobatches);
  Pipeline pipe(mesh, schedule, mean_loss);
  Draw draw(1);
  const at::Tensor full = draw.normal({kSize, kSize}), x = draw.normal({2 * kMicrobatches, kSize});
  std::map<int, at::Tensor> own;
  std::map<int, int> calls;
  for (const int stage : pipe.stages()) {
    own[stage] = placed_weight(full, pipe.stage_mesh(), trial.sharded);
    const auto forward = [&, stage](const Tensors& in) {
      const bool odd = calls[stage]++ % 2 == 1;
      return layer(in[0], own[stage], trial.again == Recompute::all || (trial.again == Recompute::some && odd));
    };
    trial.reported ? pipe.set_stage(stage, forward, {own[stage]}) : pipe.set_stage(stage, forward);
  }
  std::vector<Tensors> parts;
  for (const at::Tensor& part : pipeline::microbatches(x, kMicrobatches))
    parts.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
  pipe.step(parts, parts);

  Tensors leaves;
  at::Tensor out = x;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    leaves.push_back(full.clone().requires_grad_());
    out = at::tanh(at::mm(out, leaves.back()));
  }
  at::mse_loss(out, x).backward();
  for (const auto& [stage, weight] : own) {
    const Placements expected{trial.sharded ? Placement(Shard(0)) : Placement(Replicate())};
    EXPECT_EQ(DTensor(weight.grad()).placements(), expected) << trial.str();
    test::expect_close(weight.grad(), leaves[static_cast<std::size_t>(stage)].grad(), trial.str());
  }
}

TEST(PipelineRecomputed, GradientsAreReducedWithAndWithoutParametersOfSetStage) {
  for (const std::string schedule : {"1f1b", "zb-h1", "zbv", "dualpipev"}) {
    for (const bool sharded : {false, true}) {
      for (const bool reported : {false, true}) {
        for (const Recompute again : {Recompute::none, Recompute::some, Recompute::all}) {
          const Trial trial{schedule, sharded, reported, again};
          run_local(4, [&](const Communicator& world) { run_trial(trial, world); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtensor
