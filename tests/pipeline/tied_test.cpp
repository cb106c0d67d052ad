// Copies of a parameter on several stages get the gradient of one parameter, whatever earlier steps did.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/pipeline.h"
#include "pipeline/microbatches.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

using pipeline::Pipeline;
using pipeline::Tensors;
using test::Draw;
using test::mean_loss;
using test::parts;

constexpr std::int64_t kSize = 4;

enum class Sync { all, none, shards };  // Scope of a step: NoGradientSync or NoReplicaSync.

// A step of the model x -> tanh(x w v) w', where w' is tied to w.
struct OneStep {
  Sync sync;
  bool first_uses_it;  // Whether stage 0 uses its copy.
  bool zeroed;         // Whether gradients are reset before the step.
};

struct Trial {
  bool sharded, frozen;
  std::vector<OneStep> steps;  // The last step uses Sync::all.
};

std::ostream& operator<<(std::ostream& out, const Trial& trial) {
  out << (trial.sharded ? "sharded" : "unsharded") << (trial.frozen ? ", frozen" : "");
  for (const OneStep& s : trial.steps) out << "; " << static_cast<int>(s.sync) << s.first_uses_it << s.zeroed;
  return out;
}

at::Tensor first_half(const at::Tensor& x, const at::Tensor& w, const at::Tensor& v, bool uses_it) {
  return at::tanh(at::mm(uses_it ? at::mm(x, w) : x, v));
}

Tensors reference(const Trial& trial, const at::Tensor& w0, const at::Tensor& v0, const at::Tensor& x) {
  const at::Tensor w = w0.clone().requires_grad_(!trial.frozen), v = v0.clone().requires_grad_();
  for (const OneStep& step : trial.steps) {
    for (const at::Tensor& p : {w, v}) {
      if (step.zeroed) p.mutable_grad().reset();
    }
    at::mse_loss(at::mm(first_half(x, w, v, step.first_uses_it), w.t()), x).backward();
  }
  return {w.grad(), v.grad()};
}

void run_trial(const Trial& trial) {
  Draw draw(1);
  const at::Tensor w0 = draw.normal({kSize, kSize}), v0 = draw.normal({kSize, kSize}), x = draw.normal({8, kSize});
  const Tensors expected = reference(trial, w0, v0, x);
  run_local(8, [&](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2, 2, 2}, {"pp", "replicate", "shard"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 2), mean_loss);
    at::Tensor w = w0.clone().requires_grad_(!trial.frozen), v = v0.clone().requires_grad_();
    const int stage = pipe.stages()[0];
    for (at::Tensor* p : {&w, &v}) {
      if (!trial.sharded) *p = distribute_tensor(p->detach(), pipe.stage_mesh(), {Replicate(), Replicate()});
    }
    w.requires_grad_(!trial.frozen), v.requires_grad_();
    if (trial.sharded) fully_shard(NamedTensors{{"w", &w}, {"v", &v}}, pipe.stage_mesh());
    bool first_uses_it = true;
    pipe.set_stage(
        stage,
        [&](const Tensors& in) {
          return Tensors{stage == 0 ? first_half(in[0], w, v, first_uses_it) : at::mm(in[0], w.t())};
        },
        stage == 0 ? Tensors{w, v} : Tensors{w});
    pipe.tie("w", {w});
    std::vector<Tensors> parts;
    for (const at::Tensor& part : pipeline::microbatches(x, 2))
      parts.push_back({distribute_tensor(part, pipe.stage_mesh(), {Shard(0), Shard(0)})});
    for (const OneStep& step : trial.steps) {
      for (const at::Tensor& p : {w, v}) {
        if (step.zeroed) p.mutable_grad().reset();
      }
      std::optional<NoGradientSync> later;
      std::optional<NoReplicaSync> shards_only;
      if (step.sync == Sync::none) later.emplace();
      if (step.sync == Sync::shards) shards_only.emplace();
      first_uses_it = step.first_uses_it;
      pipe.step(parts, parts);
    }
    const std::string what = c10::str(trial, ", stage ", stage);
    EXPECT_EQ(w.grad().defined(), !trial.frozen) << what;
    if (stage == 0) test::expect_close(v.grad(), expected[1], what);
    if (trial.frozen || !w.grad().defined()) return;
    const Placements placements{Replicate(), trial.sharded ? Placement(Shard(0)) : Placement(Replicate())};
    EXPECT_EQ(DTensor(w.grad()).placements(), placements) << what;
    test::expect_close(w.grad(), expected[0], what);
  });
}

TEST(PipelineTied, UnreducedGradientsAreReducedInALaterStep) {
  for (const bool sharded : {false, true}) {
    for (const Sync sync : {Sync::none, Sync::shards}) {
      for (const bool uses : {true, false}) {
        run_trial({sharded, false, {{sync, uses, false}, {Sync::all, true, false}}});
        run_trial({sharded, false, {{Sync::all, true, false}, {sync, uses, false}, {Sync::all, uses, false}}});
      }
    }
  }
}

RC_GTEST_PROP(PipelineTied, AnyStepsMatchSingleDevice, ()) {
  Trial trial{*rc::gen::arbitrary<bool>(), *rc::gen::inRange(0, 4) == 0, {}};
  const auto steps = *rc::gen::inRange(1, 6);
  for (int s = 0; s < steps; ++s) {
    const auto sync = s + 1 == steps ? Sync::all : *rc::gen::element(Sync::all, Sync::none, Sync::shards);
    trial.steps.push_back({sync, *rc::gen::arbitrary<bool>(), *rc::gen::inRange(0, 3) == 0});
  }
  run_trial(trial);
  RC_ASSERT(!testing::Test::HasFailure());
}

// Optimizers apply weight decay to parameters with zero gradients, but not to those without.
TEST(PipelineTied, FrozenCopiesGetNoGradient) { run_trial({false, true, {{Sync::all, true, false}}}); }

TEST(PipelineTied, DuplicateCopyCountsOnce) {
  run_local(1, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 1, 1), mean_loss);
    Draw draw(1);
    const at::Tensor a = draw.normal({kSize, kSize}).requires_grad_(), x = draw.normal({2, kSize});
    const at::Tensor b = a.detach().clone().requires_grad_(), one = a.detach().clone().requires_grad_();
    pipe.set_stage(0, [&](const Tensors& in) { return Tensors{at::mm(at::mm(in[0], a), b)}; }, {a, b});
    pipe.tie("w", {a, b, b});
    for (int step = 0; step < 2; ++step) {
      pipe.step({{x}}, {{x}});
      at::mse_loss(at::mm(at::mm(x, one), one), x).backward();
    }
    for (const at::Tensor& copy : {a, b}) test::expect_close(copy.grad(), one.grad(), "copy");
  });
}

// The gradient of such a copy would be added once for each name. Only one rank detects the mistake.
TEST(PipelineTied, CopyWithTwoNamesIsErrorOnAllRanks) {
  run_local(2, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 2, 1), mean_loss);
    const at::Tensor w = at::ones({kSize}, at::kDouble).requires_grad_(), v = at::ones({kSize}, at::kDouble);
    pipe.set_stage(world.rank(), [&](const Tensors& in) { return Tensors{in[0] * w}; });
    pipe.tie("w", {w});
    const std::string error = test::error_of([&] { pipe.tie("again", {world.rank() == 1 ? w : v}); });
    EXPECT_NE(error.find("a copy of again is one of w already"), std::string::npos) << error;
    const std::vector<Tensors> x{{at::ones({1, kSize}, at::kDouble)}}, zeros{{at::zeros({1, kSize}, at::kDouble)}};
    pipe.step(x, zeros);
    test::expect_close(w.grad(), at::ones({kSize}, at::kDouble), "of mean((w w x)^2), 2 w^3 / 4 of each of two copies");
  });
}

// Like the gradients of other parameters.
TEST(PipelineTied, FailedStepKeepsEarlierGradients) {
  run_local(1, [](const Communicator& world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {1}, {"pp"});
    Pipeline pipe(mesh, pipeline::make_schedule("1f1b", 1, 2), mean_loss);
    const at::Tensor w = at::ones({3}, at::kDouble).requires_grad_();
    int calls = 0;
    pipe.set_stage(0,
                   [&](const Tensors& in) {
                     TORCH_CHECK(++calls != 4, "no more of this");
                     return Tensors{in[0] * w};
                   },
                   {w});
    pipe.tie("w", {w});
    const std::vector<Tensors> parts(2, {at::full({1, 3}, 2, at::kDouble)}), zeros(2, {at::zeros({1, 3}, at::kDouble)});
    pipe.step(parts, zeros);
    const at::Tensor once = w.grad().clone();
    EXPECT_EQ(test::error_of([&] { pipe.step(parts, zeros); }), "no more of this");
    ASSERT_TRUE(w.grad().defined());
    test::expect_close(w.grad(), once, "after the failed step");
    pipe.step(parts, zeros);
    test::expect_close(w.grad(), once * 2, "after the next");
  });
}

}  // namespace
}  // namespace dtensor
