// Any valid schedule finishes with the right results, whatever its order and the duration of its actions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "dtensor/fully_shard.h"
#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "pipeline_schedule/reference.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Schedule;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;
using test::parts;

constexpr std::int64_t kSize = 3;

// Sleeps up to 100 microseconds in one call of three.
void delay(std::mt19937_64& random) {
  if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
}

struct Chain {
  std::vector<at::Tensor> weights;
  at::Tensor x, y;
  Chain(std::uint64_t seed, int stages, std::int64_t rows) {
    Draw draw(seed);
    for (int i = 0; i < stages; ++i) weights.push_back(draw.normal({kSize, kSize}).requires_grad_());
    x = draw.normal({rows, kSize});
    y = draw.normal({rows, kSize});
  }
  // A weight that is used twice in its stage.
  at::Tensor stage(int i, const at::Tensor& in) const {
    const at::Tensor& w = weights[static_cast<std::size_t>(i)];
    return at::mm(at::tanh(at::mm(in, w)), w);
  }
};

Schedule any_schedule(std::mt19937_64& random) {
  const Schedule compute = pipeline::reference::random_schedule(random, 3, 4, 3);
  for (;;) {
    const pipeline::CommunicationOptions options{
        .unsharded_stages = random() % 2 == 0 ? std::optional(static_cast<int>(1 + random() % 2)) : std::nullopt,
        .reduce_grad = random() % 2 == 0,
        .rendezvous = random() % 4 == 0};
    Schedule schedule = pipeline::with_communication(compute, options);
    if (pipeline::check(schedule).in_order) return schedule;
  }
}

RC_GTEST_PROP(RandomSchedules, ValidSchedulesMatchSingleDeviceGradients, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  std::mt19937_64 random(seed);
  const Schedule schedule = any_schedule(random);
  const int count = schedule.microbatches();
  const auto rows = count + static_cast<std::int64_t>(random() % 4);
  Chain reference(seed, schedule.stages(), rows);
  at::Tensor out = reference.x;
  for (int i = 0; i < schedule.stages(); ++i) out = reference.stage(i, out);
  const at::Tensor loss = at::mse_loss(out, reference.y);
  loss.backward();

  run_local(static_cast<int>(schedule.ranks.size()), [&](const Communicator& world) {
    std::mt19937_64 own_delays(seed + static_cast<std::uint64_t>(world.rank()));
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"pp"});
    Chain chain(seed, schedule.stages(), rows);
    Pipeline pipe(mesh, schedule, mean_loss);
    for (const int stage : pipe.stages()) {
      const at::Tensor& weight = chain.weights[static_cast<std::size_t>(stage)];
      weight.register_hook([&own_delays](const at::Tensor&) { delay(own_delays); });
      pipe.set_stage(stage,
                     [&chain, &own_delays, stage](const Tensors& in) {
                       delay(own_delays);
                       return Tensors{chain.stage(stage, in[0])};
                     },
                     {weight});
    }
    const auto result = pipe.step(parts(chain.x, count), parts(chain.y, count));
    EXPECT_NEAR(result.loss.item<double>(), loss.item<double>(), 1e-12) << schedule.str();
    for (const int stage : pipe.stages()) {
      const auto i = static_cast<std::size_t>(stage);
      test::expect_close(chain.weights[i].grad(), reference.weights[i].grad(), schedule.str());
    }
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

}  // namespace
}  // namespace dtensor
