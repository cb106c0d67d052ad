// Mistakes that only ranks of one stage detect.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using List = std::vector<Tensors>;

// Two stages of one weight each; the test sets the second.
struct Line {
  at::Tensor weight, x = Draw(5).normal({4, 4});
  double heavy = 2;  // Weight of a microbatch.
  Pipeline pipe;
  explicit Line(const Communicator& world)
      : weight(Draw(world.rank() + 1).normal({4, 4}).requires_grad_()),
        pipe(init_device_mesh(world, at::kCPU, {2}, {"pp"}), pipeline::make_schedule("1f1b", 2, 2), mean_loss,
             {.weight = [this](const Tensors& t) { return heavy * static_cast<double>(t.at(0).size(0)); }}) {}
  void set(int stage) {
    pipe.set_stage(stage, [this](const Tensors& in) { return Tensors{at::mm(in[0], weight)}; });
  }
};

struct Mistake {
  const char* says;
  std::function<void(Line&)> make;
};

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all{
      {"no rank has stage 9 of 2", [](Line& l) { l.pipe.stage_mesh(9); }},
      {"no rank has stage -1 of 2", [](Line& l) { l.pipe.stage_mesh(-1); }},
      {"expected inputs of 2 microbatches, got 3", [](Line& l) { l.pipe.step(parts(l.x, 3), parts(l.x, 2)); }},
      {"expected targets of 2 microbatches, got 3", [](Line& l) { l.pipe.step(parts(l.x, 2), parts(l.x, 3)); }},
      {"expected targets of 2 microbatches, got 3", [](Line& l) { l.pipe.evaluate(parts(l.x, 2), parts(l.x, 3)); }},
      {"no target is valid",
       [](Line& l) {
         const Tensors none{l.x.narrow(0, 0, 0)};
         l.pipe.step(parts(l.x, 2), {none, none});
       }},
      {"the weight of a microbatch",
       [](Line& l) {
         l.pipe.step(parts(l.x, 2), {{}, {}});
       }},
      {"non-negative weight of a microbatch, got -",
       [](Line& l) {
         l.heavy = -2;
         l.pipe.step(parts(l.x, 2), parts(l.x, 2));
       }},
      {"non-negative weight of a microbatch, got inf",
       [](Line& l) {
         l.heavy = INFINITY;
         l.pipe.step(parts(l.x, 2), parts(l.x, 2));
       }},
      {"is the result of operators",
       [](Line& l) { l.pipe.step(parts(l.x.clone().requires_grad_() * 2, 2), parts(l.x, 2)); }},
      {"step() computes gradients",
       [](Line& l) {
         const at::NoGradGuard no_grad;
         l.pipe.step(parts(l.x, 2), parts(l.x, 2));
       }},
      {"step() computes gradients", [](Line& l) {
         const c10::InferenceMode inference;
         l.pipe.step(parts(l.x, 2), parts(l.x, 2));
       }}};
  return all;
}

// A program that catches the error continues with the next step, in which no rank receives messages of the failed one.
TEST(PipelineMistakes, AreErrorsOnAllRanksAndLeaveNoState) {
  run_local(2, [](const Communicator& world) {
    Line line(world);
    line.set(world.rank());
    const double expected = line.pipe.evaluate(parts(line.x, 2), parts(line.x, 2)).item<double>();
    for (const Mistake& mistake : mistakes()) {
      const std::string error = error_of([&] { mistake.make(line); });
      EXPECT_NE(error.find(mistake.says), std::string::npos) << "rank " << world.rank() << ": " << error;
      EXPECT_FALSE(line.weight.grad().defined()) << mistake.says;
      line.heavy = 2;
      EXPECT_EQ(line.pipe.step(parts(line.x, 2), parts(line.x, 2)).loss.item<double>(), expected) << mistake.says;
      line.weight.mutable_grad().reset();
    }
  });
}

// Two ranks for each stage. The ranks of the last stage count valid targets (DTensors) in a collective, in which they
// learn of a mistake of one of them.
struct Replicas {
  at::Tensor weight;
  Pipeline pipe;
  Replicas(const Communicator& world, const std::string& schedule, std::int64_t stages)
      : pipe(init_device_mesh(world, at::kCPU, {stages, 2}, {"pp", "dp"}),
             pipeline::make_schedule(schedule, static_cast<int>(stages), 2),
             [](const Tensors& out, const Tensors& targets) { return at::cross_entropy_loss(out[0], targets[0]); },
             {.weight = pipeline::valid_targets()}) {
    weight = distribute_tensor(Draw(1).normal({4, 4}), pipe.stage_mesh(), {Replicate()}).requires_grad_();
    for (const int stage : pipe.stages()) {
      pipe.set_stage(stage, [this](const Tensors& in) { return Tensors{at::mm(in[0], weight)}; });
    }
  }
  List placed(const at::Tensor& batch) const {
    List result = parts(batch, 2);
    for (Tensors& part : result) part[0] = distribute_tensor(part[0], pipe.stage_mesh(), {Shard(0)});
    return result;
  }
};

TEST(PipelineMistakes, MistakeOfOneRankIsReportedByAllRanks) {
  const at::Tensor x = Draw(5).normal({8, 4}), y = at::arange(8).remainder(4);
  for (const auto& [schedule, stages] : std::vector<std::pair<std::string, std::int64_t>>{{"1f1b", 2}, {"zbv", 1}}) {
    run_local(static_cast<int>(stages) * 2, [&, schedule = schedule, stages = stages](const Communicator& world) {
      Replicas replicas(world, schedule, stages);
      const bool mistaken = world.rank() == (stages - 1) * 2;
      const List inputs = replicas.placed(x), targets = replicas.placed(y);
      const double expected = replicas.pipe.evaluate(inputs, targets).item<double>();
      List more = targets, computed = inputs;
      more.push_back(targets[0]);
      for (Tensors& part : computed) part[0] = part[0].detach().requires_grad_() * 2;
      const auto& own_targets = mistaken ? more : targets;
      const std::vector<std::pair<const char*, std::function<void()>>> mistakes{
          {"expected targets of 2 microbatches, got 3", [&] { replicas.pipe.step(inputs, own_targets); }},
          {"expected targets of 2 microbatches, got 3", [&] { replicas.pipe.evaluate(inputs, own_targets); }},
          {"step() computes gradients",
           [&] {
             const at::AutoGradMode mode(!mistaken);
             replicas.pipe.step(inputs, targets);
           }},
          {"is the result of operators", [&] { replicas.pipe.step(mistaken ? computed : inputs, targets); }}};
      for (std::size_t i = 0; i < mistakes.size(); ++i) {
        if (i == 3 && stages > 1) continue;  // That rank has no inputs.
        const std::string error = error_of(mistakes[i].second);
        EXPECT_NE(error.find(mistakes[i].first), std::string::npos) << "rank " << world.rank() << ": " << error;
        EXPECT_EQ(replicas.pipe.evaluate(inputs, targets).item<double>(), expected) << mistakes[i].first;
      }
    });
  }
}

TEST(PipelineMistakes, UnsetStageIsReportedByAllRanks) {
  run_local(2, [](const Communicator& world) {
    Line line(world);
    if (world.rank() == 0) line.set(0);
    const std::string error = error_of([&] { line.pipe.step(parts(line.x, 2), parts(line.x, 2)); });
    EXPECT_NE(error.find("stage 1 was never set"), std::string::npos) << error;
  });
}

TEST(PipelineMistakes, MissingActionsOfOneRankAreReportedByAllRanks) {
  run_local(2, [](const Communicator& world) {
    Line line(world);
    line.set(world.rank());
    const auto actions = line.pipe.step(parts(line.x, 2), parts(line.x, 2)).actions;
    const std::string error =
        error_of([&] { line.pipe.gather_actions(world.rank() == 1 ? decltype(actions){} : actions); });
    EXPECT_NE(error.find("of a step of this pipeline, got 0"), std::string::npos) << error;
    EXPECT_EQ(line.pipe.gather_actions(actions).size(), 2U);
  });
}

TEST(PipelineMistakes, InvalidLayerCostsAreRefused) {
  for (const double cost : {-5., static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_NE(error_of([&] { pipeline::balanced_stages({1, cost, 1}, 3); }).find("layer 1 costs"), std::string::npos);
  }
  EXPECT_NE(error_of([] { pipeline::balanced_stages({1e308, 1e308}, 2); }).find("layer 1 costs"), std::string::npos);
  EXPECT_EQ(pipeline::balanced_stages({0, 0, 2, 1}, 2).back(), 1);
}

}  // namespace
}  // namespace dtensor::test
