// UNSHARD, RESHARD and REDUCE_GRAD run where the schedule has them: the tests count gathers and reductions, and check
// that a stage is not gathered outside its actions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Action;
using pipeline::Pipeline;
using pipeline::Schedule;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;

constexpr std::int64_t kSize = 6;
constexpr int kMicrobatches = 4;

// A chain of stages with one fully sharded weight each, on 2 ranks along pp and 2 along shard.
struct Chain {
  DeviceMesh mesh;
  Pipeline pipe;
  std::vector<at::Tensor> weights;  // Unsharded, of every stage.
  std::map<int, at::Tensor> own;    // Sharded.
  std::map<int, FsdpUnit> units;
  at::Tensor x, y;
  std::int64_t gathered_of_others = 0;  // Maximum while a stage ran.

  Chain(const Communicator& world, const Schedule& schedule)
      : mesh(init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "shard"})), pipe(mesh, schedule, mean_loss) {
    Draw draw(3);
    for (int i = 0; i < schedule.stages(); ++i) weights.push_back(draw.normal({kSize, kSize}));
    x = draw.normal({2 * kMicrobatches, kSize});
    y = draw.normal({2 * kMicrobatches, kSize});
    for (const int stage : pipe.stages()) {
      at::Tensor& weight = own[stage] = weights[static_cast<std::size_t>(stage)].clone().requires_grad_();
      units.emplace(stage, fully_shard(NamedTensors{{"w", &weight}}, pipe.stage_mesh(), {.shard_axes = {"shard"}}));
      pipe.set_stage(stage, [this, stage](const Tensors& in) { return forward(stage, in); }, {weight});
    }
  }
  Tensors forward(int stage, const Tensors& in) {
    for (const auto& [other, unit] : units) {
      if (other != stage) gathered_of_others = std::max(gathered_of_others, unit.stats().gathered_bytes);
    }
    return {at::tanh(at::mm(in[0], own[stage]))};
  }
  std::vector<Tensors> parts(const at::Tensor& batch) const {
    std::vector<Tensors> result;
    for (const at::Tensor& part : pipeline::microbatches(batch, kMicrobatches))
      result.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
    return result;
  }
  void step() { pipe.step(parts(x), parts(y)); }
  void expect_gradients(const std::string& what) {
    std::vector<at::Tensor> leaves;
    at::Tensor out = x;
    for (const at::Tensor& weight : weights) {
      leaves.push_back(weight.clone().requires_grad_());
      out = at::tanh(at::mm(out, leaves.back()));
    }
    at::mse_loss(out, y).backward();
    for (auto& [stage, weight] : own) {
      ASSERT_TRUE(weight.grad().defined()) << what;
      EXPECT_EQ(DTensor(weight.grad()).placements(), Placements{Shard(0)}) << what;
      test::expect_close(weight.grad(), leaves[static_cast<std::size_t>(stage)].grad(), what);
    }
  }
};

int count(const Schedule& schedule, int rank, Action::Kind kind, int stage) {
  const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
  return static_cast<int>(
      std::count_if(actions.begin(), actions.end(), [&](const auto& a) { return a.kind == kind && a.stage == stage; }));
}

void on_four(const Schedule& schedule, const std::function<void(Chain&)>& body) {
  run_local(4, [&](const Communicator& world) {
    Chain chain(world, schedule);
    body(chain);
  });
}

TEST(PipelineActions, UnshardGathersAndReshardFrees) {
  for (const std::string& name : pipeline::schedule_names()) {
    for (const int space : {1, 2}) {
      const auto schedule = pipeline::with_communication(pipeline::make_schedule(name, 2, kMicrobatches),
                                                         {.unsharded_stages = space, .reduce_grad = false});
      on_four(schedule, [&](Chain& chain) {
        const int rank = chain.mesh.local_rank("pp");
        for (int step = 1; step <= 2; ++step) {
          chain.step();
          for (const auto& [stage, unit] : chain.units) {
            const int expected = count(schedule, rank, Action::Kind::unshard, stage);
            EXPECT_EQ(unit.stats().all_gathers, step * expected) << name << " stage " << stage;
            EXPECT_EQ(unit.stats().gathered_bytes, 0) << name;
          }
          if (space == 1) {
            EXPECT_EQ(chain.gathered_of_others, 0) << name;
          }
          if (step == 1) chain.expect_gradients(name);
        }
      });
    }
  }
}

// Without these actions a stage gathers for each forward and each backward, and frees in between.
TEST(PipelineActions, WithoutActionsEachUseGathers) {
  on_four(pipeline::make_schedule("1f1b", 2, kMicrobatches), [](Chain& chain) {
    chain.step();
    const auto& [stage, unit] = *chain.units.begin();
    // The input of the first stage needs no gradient, so backward does not read its weight.
    EXPECT_EQ(unit.stats().all_gathers, (stage == 0 ? 1 : 2) * kMicrobatches);
    EXPECT_EQ(unit.stats().gathered_bytes, 0);
  });
}

TEST(PipelineActions, ReduceGradReducesAtItsPosition) {
  for (const std::string name : {"gpipe", "1f1b", "zb-h1", "zbv", "interleaved"}) {
    const auto schedule = pipeline::with_communication(pipeline::make_schedule(name, 2, kMicrobatches),
                                                       {.unsharded_stages = std::nullopt});
    on_four(schedule, [&](Chain& chain) {
      std::vector<std::string> reductions;
      {
        const EventListener listener(
            [&](const Event& e) {
              if (e.name.starts_with("reduce_scatter") && e.axis == "shard") reductions.push_back(e.name);
            },
            {Event::Kind::collective});
        chain.step();
      }
      EXPECT_EQ(reductions.size(), chain.units.size()) << name;
      chain.expect_gradients(name);
    });
  }
}

// Also with several parameters and in the first step: gpipe runs all forwards before the first backward ends.
TEST(PipelineActions, UnitIsReducedOncePerStep) {
  constexpr int kStages = 2, kWeights = 3, kSteps = 3;
  for (const std::string name : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int microbatches : {1, 2, 4}) {
      run_local(2 * kStages, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {kStages, 2}, {"pp", "shard"});
        Pipeline pipe(mesh, pipeline::make_schedule(name, kStages, microbatches), mean_loss);
        Draw draw(7);
        const at::Tensor x = draw.normal({2 * microbatches, kSize});
        Tensors weights;
        for (int k = 0; k < kWeights; ++k) weights.push_back(draw.normal({kSize, kSize}).requires_grad_());
        const FsdpUnit unit = fully_shard(NamedTensors{{"a", &weights[0]}, {"b", &weights[1]}, {"c", &weights[2]}},
                                          pipe.stage_mesh(), {.shard_axes = {"shard"}});
        const auto forward = [&](const Tensors& in) {
          at::Tensor out = in[0];
          for (const auto& weight : weights) out = at::tanh(at::mm(out, weight));
          return Tensors{out};
        };
        pipe.set_stage(pipe.stages()[0], forward, weights);
        std::vector<Tensors> parts;
        for (const auto& part : pipeline::microbatches(x, microbatches))
          parts.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
        for (int step = 1; step <= kSteps; ++step) {
          pipe.step(parts, parts);
          EXPECT_EQ(unit.stats().reduce_scatters, step) << name << " of " << microbatches << " in step " << step;
        }
      });
    }
  }
}

// Gradient accumulation over steps: the first step reduces nothing, neither by units nor by the schedule.
TEST(PipelineActions, NoGradientSyncDefersTheReductionToALaterStep) {
  for (const bool by_action : {false, true}) {
    for (const std::string name : {"1f1b", "zb-h1"}) {
      const auto compute = pipeline::make_schedule(name, 2, kMicrobatches);
      const auto schedule =
          by_action ? pipeline::with_communication(compute, {.unsharded_stages = std::nullopt}) : compute;
      on_four(schedule, [&](Chain& chain) {
        int reductions = 0;
        const EventListener listener(
            [&](const Event& e) { reductions += e.name.starts_with("reduce_scatter") && e.axis == "shard"; },
            {Event::Kind::collective});
        {
          const NoGradientSync later;
          chain.step();
        }
        EXPECT_EQ(reductions, 0) << name << by_action;
        chain.step();
        EXPECT_EQ(reductions, 1) << name << by_action;
        for (auto& [stage, weight] : chain.own) weight.mutable_grad().mul_(0.5);  // Of two equal steps.
        chain.expect_gradients(name);
      });
    }
  }
}

TEST(PipelineActions, EvaluationLeavesNothingGathered) {
  for (const bool by_action : {false, true}) {
    const auto compute = pipeline::make_schedule("1f1b", 2, kMicrobatches);
    on_four(by_action ? pipeline::with_communication(compute, {}) : compute, [](Chain& chain) {
      chain.pipe.evaluate(chain.parts(chain.x), chain.parts(chain.y));
      for (const auto& [stage, unit] : chain.units) EXPECT_EQ(unit.stats().gathered_bytes, 0) << stage;
    });
  }
}

TEST(PipelineActions, ClippingWithoutParametersOfAStageIsRefusedOnEveryRank) {
  std::atomic<int> refused = 0;
  run_local(2, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
    const auto pass = [](const Tensors& in) { return in; };
    world.rank() == 0 ? pipe.set_stage(0, pass, {at::ones({2}).requires_grad_()}) : pipe.set_stage(1, pass);
    const auto error = test::error_of([&] { pipe.clip_grad_norm_(1); });
    EXPECT_NE(error.find("needs the parameters of stage 1"), std::string::npos) << error;
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

TEST(PipelineActions, ActionsOfAStageWithoutParametersAreRefused) {
  const auto error = test::error_of([] {
    run_local(1, [](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1}, {"pp"});
      const auto schedule = pipeline::with_communication(pipeline::make_schedule("gpipe", 1, 2), {});
      Pipeline pipe(mesh, schedule, mean_loss);
      pipe.set_stage(0, [](const Tensors& in) { return in; });
    });
  });
  EXPECT_NE(error.find("0UNSHARD, but set_stage was given no parameters of stage 0"), std::string::npos) << error;
}

// A parameter that only the first microbatch uses, as an expert may be, in a unit and outside of one.
TEST(PipelineActions, ParametersUnusedInTheLastMicrobatchAreReduced) {
  for (const bool sharded : {false, true}) {
    for (const std::string name : {"1f1b", "zb-h1"}) {
      run_local(4, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "shard"});
        Pipeline pipe(mesh, pipeline::make_schedule(name, 2, 2), mean_loss);
        Draw draw(5);
        const at::Tensor x = draw.normal({4, kSize}), full = draw.normal({kSize, kSize});
        at::Tensor expected = full.clone().requires_grad_();
        const at::Tensor first = x.narrow(0, 0, 2), second = x.narrow(0, 2, 2);
        const at::Tensor once = at::cat({at::mm(first, expected), second});
        at::mse_loss(at::pow(once, 2), x).backward();

        at::Tensor weight = full.clone().requires_grad_();
        if (sharded) {
          fully_shard(NamedTensors{{"w", &weight}}, pipe.stage_mesh(), {.shard_axes = {"shard"}});
        } else {
          weight = distribute_tensor(full, pipe.stage_mesh(), {Replicate()}).requires_grad_();
        }
        const int stage = pipe.stages()[0];
        int calls = 0;
        pipe.set_stage(
            stage,
            [&, stage](const Tensors& in) {
              if (stage == 1) return Tensors{at::pow(in[0], 2)};
              return Tensors{calls++ == 0 ? at::mm(in[0], weight) : in[0].clone()};
            },
            stage == 0 ? Tensors{weight} : Tensors{});
        std::vector<Tensors> parts;
        for (const auto& part : pipeline::microbatches(x, 2))
          parts.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0)})});
        pipe.step(parts, parts);
        if (stage == 1) return;
        EXPECT_EQ(DTensor(weight.grad()).placements()[0].is_partial(), false) << name << sharded;
        test::expect_close(weight.grad(), expected.grad(), name);
      });
    }
  }
}

}  // namespace
}  // namespace dtensor
