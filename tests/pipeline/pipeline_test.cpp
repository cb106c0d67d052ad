// Every schedule trains as one device does: loss, gradients and weights, for any microbatches and any parallelism
// within stages.
#include "dtensor/pipeline.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/optim/clip.h"
#include "dtensor/random.h"
#include "pipeline/trials.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using namespace test::pipelines;
using test::Draw;

void run_trial(const Trial& trial) {
  const Reference reference = one_device(trial);
  run_local(trial.world_size(),
            [&](const Communicator& world) { test::pipelines::run_trial(trial, reference, world); });
}

TEST(Pipeline, EveryScheduleMatchesSingleDevice) {
  for (const std::string& schedule : pipeline::schedule_names()) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int count : {1, 2, 3, 5, 8}) run_trial({schedule, ranks, count, 11});
    }
  }
}

TEST(Pipeline, EveryScheduleWithParallelStages) {
  for (const std::string& schedule : pipeline::schedule_names()) {
    for (const StageParallelism inside :
         {StageParallelism::replicate, StageParallelism::fsdp, StageParallelism::tp, StageParallelism::hsdp}) {
      for (const int count : {1, 3}) run_trial({schedule, 2, count, 8, inside});
    }
  }
}

RC_GTEST_PROP(Pipeline, AnyTrialMatchesSingleDevice, ()) {
  const auto& names = pipeline::schedule_names();
  const int count = *rc::gen::element(1, 2, 3, 5, 8);
  const auto inside = static_cast<StageParallelism>(*rc::gen::inRange(0, 5));
  const Trial trial{*rc::gen::elementOf(names),
                    *rc::gen::inRange(1, 5),
                    count,
                    4 * count + *rc::gen::inRange(0, 9),
                    inside,
                    *rc::gen::arbitrary<bool>(),
                    *rc::gen::arbitrary<bool>(),
                    inside == StageParallelism::nothing ? 0 : *rc::gen::element(0.0, 0.3),
                    *rc::gen::element(1.0, 1024.0),
                    *rc::gen::arbitrary<std::uint32_t>()};
  run_trial(trial);
  RC_ASSERT(!testing::Test::HasFailure());
}

// The embedding's weight is tied to the head, with dropout in between. The reference is one device with the same seed.
struct TiedModel {
  at::Tensor embedding, middle;
  TiedModel() {
    Draw draw(77);
    embedding = draw.normal({kClasses, kHidden});
    middle = draw.normal({kHidden, kHidden});
  }
  Tensors first(const Tensors& in) const { return {at::dropout(at::embedding(embedding, in[0]), 0.3, true)}; }
  Tensors second(const Tensors& in) const { return {in[0] + at::dropout(at::gelu(at::mm(in[0], middle)), 0.5, true)}; }
  Tensors last(const Tensors& in) const { return {at::mm(at::dropout(in[0], 0.2, true), embedding.t())}; }
};

struct TiedResult {
  double loss = 0, norm = 0;
  at::Tensor embedding, middle;  // Gradients after clipping.
};

constexpr double kMaxNorm = 0.1;

TiedResult tied_on_one_device(const at::Tensor& ids, const at::Tensor& targets) {
  TiedResult result;
  run_local(1, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1}, {"one"});
    manual_seed(mesh, 5);
    TiedModel model;
    for (at::Tensor* p : {&model.embedding, &model.middle}) {
      *p = distribute_tensor(*p, mesh, {Replicate()});
      p->requires_grad_();
    }
    for (int step = 0; step < 2; ++step) {
      const auto outputs = model.last(model.second(model.first({distribute_tensor(ids, mesh, {Replicate()})})));
      const at::Tensor loss = mean_loss(outputs, {distribute_tensor(targets, mesh, {Replicate()})});
      loss.backward();
      result.loss = loss.item<double>();
    }
    result.norm = dtensor::clip_grad_norm_({model.embedding, model.middle}, kMaxNorm).item<double>();
    result.embedding = DTensor(model.embedding.grad()).full_tensor();
    result.middle = DTensor(model.middle.grad()).full_tensor();
  });
  return result;
}

TEST(Pipeline, TiedWeightsDropoutAndClippingMatchSingleDevice) {
  Draw draw(8);
  const at::Tensor ids = draw.integers({11}, kClasses), targets = draw.integers({11}, kClasses);
  const TiedResult reference = tied_on_one_device(ids, targets);
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int ranks : {1, 2, 3}) {
      for (const bool split : {false, true}) {
        run_local(2 * ranks, [&](const Communicator& world) {
          const std::string what = c10::str(schedule, " ", ranks, " ranks, split ", split);
          const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {ranks, 2}, {"pp", "data"});
          manual_seed(mesh, 5);
          const auto plan = pipeline::make_schedule(schedule, ranks, 3);
          Pipeline pipe(mesh, plan, mean_loss);
          const DeviceMesh slice = pipe.stage_mesh();
          TiedModel model;
          for (at::Tensor* p : {&model.embedding, &model.middle}) {
            *p = distribute_tensor(*p, slice, {split ? Placement(Shard(0)) : Placement(Replicate())});
            p->requires_grad_();
          }
          const std::vector<pipeline::Layer> layers{{"first", [&](const Tensors& in) { return model.first(in); }},
                                                    {"second", [&](const Tensors& in) { return model.second(in); }},
                                                    {"last", [&](const Tensors& in) { return model.last(in); }}};
          const auto stage_of = pipeline::balanced_stages({1, 1, 1}, plan.stages());
          const int stage = pipe.stages()[0];
          const bool has_embedding = stage_of[0] == stage || stage_of[2] == stage;
          std::vector<at::Tensor> own;
          if (has_embedding) own.push_back(model.embedding);
          if (stage_of[1] == stage) own.push_back(model.middle);
          pipe.set_stage(stage, pipeline::stage_of_layers(layers, stage_of, stage), own);
          pipe.tie("embedding", has_embedding ? Tensors{model.embedding} : Tensors{});
          std::vector<Tensors> inputs, wanted;
          for (const auto& part : pipeline::microbatches(ids, 3))
            inputs.push_back({distribute_tensor(part, slice, {Shard(0)})});
          for (const auto& part : pipeline::microbatches(targets, 3))
            wanted.push_back({distribute_tensor(part, slice, {Shard(0)})});
          double loss = 0;
          for (int step = 0; step < 2; ++step) loss = pipe.step(inputs, wanted).loss.item<double>();
          EXPECT_NEAR(loss, reference.loss, 1e-12) << what;
          EXPECT_NEAR(pipe.clip_grad_norm_(kMaxNorm).item<double>(), reference.norm, 1e-10) << what;
          if (has_embedding) test::expect_close(model.embedding.grad(), reference.embedding, what);
          if (stage_of[1] == stage) test::expect_close(model.middle.grad(), reference.middle, what);
          EXPECT_EQ(get_rng_state(mesh).counter, 6) << what;  // Three in each step, as on one device.
        });
      }
    }
  }
}

TEST(Pipeline, StageExceptionIsReportedOnAllRanks) {
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    const std::string error = test::error_of([&] {
      run_local(3, [&](const Communicator& world) {
        const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3}, {"pp"});
        Pipeline pipe(mesh, pipeline::make_schedule(schedule, 3, 4), mean_loss);
        int calls = 0;
        pipe.set_stage(world.rank(), [&](const Tensors& in) {
          TORCH_CHECK(world.rank() != 1 || ++calls < 3, "no more of this");
          return in;
        });
        std::vector<Tensors> inputs(4, {at::randn({2, kClasses})}), targets(4, {at::zeros({2}, at::kLong)});
        pipe.step(inputs, targets);
      });
    });
    EXPECT_NE(error.find("no more of this"), std::string::npos) << error;
  }
}

// Ranks may end in any order. The other ranks end with PeerError, but run_local() throws the original exception.
TEST(Pipeline, RunThrowsTheExceptionOfTheStage) {
  for (const int failing : {0, 1, 2}) {
    const auto program = [&](const Communicator& world) {
      const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {3}, {"pp"});
      Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 3, 2), mean_loss);
      pipe.set_stage(world.rank(), [&](const Tensors& in) {
        TORCH_CHECK_INDEX(world.rank() != failing, "stage ", failing);
        return in;
      });
      const std::vector<Tensors> inputs(2, {at::randn({2, kClasses})}), targets(2, {at::zeros({2}, at::kLong)});
      try {
        pipe.step(inputs, targets);
      } catch (const c10::IndexError&) {
        EXPECT_THROW(world.barrier(), CommError);  // Fails since another rank has ended.
        throw;
      } catch (const PeerError& e) {
        EXPECT_NE(e.msg().find(c10::str("pipeline: in ", failing, "F0: stage ", failing)), std::string::npos)
            << e.msg();
        throw;
      }
    };
    EXPECT_THROW(run_local(3, program), c10::IndexError);
  }
}

}  // namespace
}  // namespace dtensor
