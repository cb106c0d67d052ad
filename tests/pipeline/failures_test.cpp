// Exceptions of stages, losses and backward passes during a step, in programs that catch them and continue.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dtensor/fully_shard.h"
#include "dtensor/pipeline.h"
#include "dtensor/random.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;

constexpr int kMicrobatches = 4;

struct Fault {
  const char* where;  // "forward", "backward" or "loss".
  int stage, call;    // The exception is thrown in this call.
};

// Stages with an unsharded weight, with one that is gathered where it is used, and with one that the schedule gathers.
enum class Weights { full, sharded, scheduled };

pipeline::Schedule schedule_of(const std::string& name, Weights kind) {
  const auto schedule = pipeline::make_schedule(name, 2, kMicrobatches);
  if (kind != Weights::scheduled) return schedule;
  return pipeline::with_communication(schedule, {.unsharded_stages = 1, .reduce_grad = true});
}

// A weight on each stage, with dropout and a fault that happens once.
struct Model {
  DeviceMesh mesh;
  Fault fault;
  std::map<std::string, int> calls = {};
  std::map<int, at::Tensor> weights = {};
  Pipeline pipe;

  Model(const DeviceMesh& on, const std::string& schedule, Weights kind, Fault with)
      : mesh(on), fault(with), pipe(mesh, schedule_of(schedule, kind), loss()) {
    for (const int stage : pipe.stages()) {
      at::Tensor& weight = weights[stage];
      weight = Draw(static_cast<std::uint64_t>(stage) + 1).normal({4, 4}).requires_grad_();
      if (kind == Weights::full) {
        weight = distribute_tensor(weight.detach(), pipe.stage_mesh(), {Replicate()}).requires_grad_();
      } else {
        fully_shard({{"weight", &weight}}, pipe.stage_mesh());
      }
      pipe.set_stage(stage, [this, stage](const Tensors& in) { return run(stage, in[0]); }, {weight});
    }
  }
  void count(const char* where, int stage) {
    if (fault.where != std::string(where) || stage != fault.stage) return;
    TORCH_CHECK(++calls[where] != fault.call, where, " of stage ", stage, ": injected failure");
  }
  Tensors run(int stage, const at::Tensor& in) {
    count("forward", stage);
    const at::Tensor out = at::dropout(at::mm(in, weights.at(stage)), 0.5, true);
    out.register_hook([this, stage](const at::Tensor&) { count("backward", stage); });
    return {out};
  }
  pipeline::Pipeline::LossFunction loss() {
    return [this](const Tensors& outputs, const Tensors& targets) {
      count("loss", fault.stage);
      return at::mse_loss(outputs[0], targets[0]);
    };
  }
  std::vector<Tensors> batch() const {
    const at::Tensor x = Draw(9).normal({2 * kMicrobatches, 4});
    std::vector<Tensors> result;
    for (const Tensors& part : parts(x, kMicrobatches))
      result.push_back({distribute_tensor(part[0], pipe.stage_mesh(), {Shard(0)})});
    return result;
  }
};

struct Outcome {
  double loss;
  std::map<int, at::Tensor> gradients;
};

Outcome outcome(Model& model) {
  manual_seed(model.mesh, 3);
  for (auto& [stage, weight] : model.weights) weight.mutable_grad().reset();
  Outcome result{model.pipe.step(model.batch(), model.batch()).loss.item<double>(), {}};
  for (auto& [stage, weight] : model.weights) result.gradients[stage] = DTensor(weight.grad()).full_tensor();
  return result;
}

void expect_recovers(const std::string& schedule, const Fault& fault, Weights kind = Weights::full) {
  run_local(4,
            [&](const Communicator& world) {
              const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2}, {"pp", "dp"});
              Model sound(mesh, schedule, kind, {"nowhere", 0, 0}), model(mesh, schedule, kind, fault);
              const std::string what =
                  c10::str(schedule, ", ", fault.where, " of stage ", fault.stage, ", ", static_cast<int>(kind));
              const Outcome expected = outcome(sound);
              manual_seed(mesh, 5);
              const std::string error = error_of([&] { model.pipe.step(model.batch(), model.batch()); });
              EXPECT_NE(error.find("injected failure"), std::string::npos) << what << ": " << error;
              EXPECT_EQ(get_rng_state(mesh).counter, (manual_seed(mesh, 5), get_rng_state(mesh).counter)) << what;
              const Outcome found = outcome(model);
              EXPECT_EQ(found.loss, expected.loss) << what;
              for (const auto& [stage, gradient] : expected.gradients)
                EXPECT_TRUE(at::equal(found.gradients.at(stage), gradient)) << what;
            },
            {.timeout = std::chrono::seconds(20)});
}

TEST(PipelineFailures, StageExceptionIsErrorOnAllRanksAndTheNextStepIsCorrect) {
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"}) {
    const int last = pipeline::make_schedule(schedule, 2, kMicrobatches).stages() - 1;
    for (const int stage : {0, last}) {
      expect_recovers(schedule, {"forward", stage, 2});
      expect_recovers(schedule, {"backward", stage, 3});
    }
    expect_recovers(schedule, {"loss", last, 4});
  }
}

TEST(PipelineFailures, GatheredParametersAreFreedAndGatheredAgain) {
  for (const std::string schedule : {"1f1b", "zbv"}) {
    const int last = pipeline::make_schedule(schedule, 2, kMicrobatches).stages() - 1;
    for (const Weights kind : {Weights::sharded, Weights::scheduled}) {
      for (const int stage : {0, last}) {
        expect_recovers(schedule, {"forward", stage, 3}, kind);
        expect_recovers(schedule, {"backward", stage, 2}, kind);
      }
    }
  }
}

TEST(PipelineFailures, NonScalarLossIsErrorInEvaluationToo) {
  run_local(2,
            [](const Communicator& world) {
              const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
              bool wrong = true;
              Pipeline pipe(
                  mesh, pipeline::make_schedule("1f1b", 2, kMicrobatches),
                  [&](const Tensors& out, const Tensors& y) { return wrong ? out[0] : at::mse_loss(out[0], y[0]); });
              pipe.set_stage(world.rank(), [](const Tensors& in) { return Tensors{in[0] * 2}; });
              const auto x = parts(at::ones({kMicrobatches, 2}, at::kDouble), kMicrobatches);
              const std::string error = error_of([&] { pipe.evaluate(x, x); });
              EXPECT_NE(error.find("expected the loss of microbatch 0 to be one number"), std::string::npos) << error;
              wrong = false;
              EXPECT_EQ(pipe.evaluate(x, x).item<double>(), 9);
            },
            {.timeout = std::chrono::seconds(20)});
}

}  // namespace
}  // namespace dtensor::test
