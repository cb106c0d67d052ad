// The second run of a segment is the first one again: under autocast, within scopes that are gone by then, and in what
// it does not compute.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor.h"
#include "dtensor/memory_timeline.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;
using dtensor::test::error_of;

// As torch.autocast does: what it has cast is forgotten at its end.
class AutocastToHalf {
 public:
  AutocastToHalf() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~AutocastToHalf() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

// A weight that the segment and what follows it use, over steps that change it, with backward within autocast or after.
// On one rank: what autocast has cast belongs to the process, and threads that are ranks forget it for each other.
TEST(Checkpoint, CastsOfAutocastAreThoseOfTheRun) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    test::Draw draw(4);
    const at::Tensor value = draw.normal({4, 4}, at::kFloat), start = draw.normal({4, 4}, at::kFloat);
    for (const bool inside : {false, true}) {
      const auto train = [&](bool again) {
        const at::Tensor w = distribute_tensor(start, mesh, {Replicate()}).requires_grad_();
        const at::Tensor x = distribute_tensor(value, mesh, {Shard(0)});
        const auto body = [&](const at::Tensor& t) { return at::mm(t, w).tanh(); };
        std::vector<at::Tensor> seen;
        for (int step = 0; step < 3; ++step) {
          w.mutable_grad().reset();
          at::Tensor loss;
          {
            const AutocastToHalf autocast;
            loss = at::mm(again ? checkpoint(body, x) : body(x), w).sum();
            if (inside) loss.backward();
          }
          if (!inside) loss.backward();
          seen.push_back(DTensor(loss.detach()).full_tensor());
          seen.push_back(DTensor(w.grad()).full_tensor());
          const at::NoGradGuard no_grad;
          w.add_(0.5);
        }
        return seen;
      };
      const auto expected = train(false), actual = train(true);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // Gradients of two casts are added up in float, those of one in bfloat16.
        test::expect_close(actual[i], expected[i], c10::str("step ", i / 2, " inside ", inside), 4e-2);
      }
    }
  });
}

// As without recomputation: an optimizer leaves parameters without a gradient alone, but not those with one of zeros.
TEST(Checkpoint, WhatNobodyUsedHasNoGradient) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto put = [&] { return distribute_tensor(at::ones({4, 4}), mesh, {Replicate()}).requires_grad_(); };
    const at::Tensor used = put(), unused = put(), x = put(), other = put();
    const CommDebugMode comms;
    const auto both = [&](const std::vector<at::Tensor>& in) {
      return std::vector{at::mm(in[0], used), at::mm(in[1], unused)};
    };
    checkpoint(both, {x, other})[0].sum().backward();
    EXPECT_TRUE(used.grad().defined() && x.grad().defined());
    EXPECT_FALSE(unused.grad().defined() || other.grad().defined());
    EXPECT_EQ(comms.total().calls, 0) << comms.table();
  });
}

// Somebody who prints the loss of the last step holds its graph while the next step runs.
TEST(Checkpoint, BackwardGivesBackWhatWasKept) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::rand({64, 64}), mesh, {Replicate()}).requires_grad_();
    const std::int64_t activation = 64 * 64 * 4;
    const auto body = [](const at::Tensor& t) { return at::mm(t, t).exp(); };
    const MemoryTimeline memory;
    const at::Tensor loss = checkpoint(body, x, {.keep = {"aten::mm"}}).sum();
    torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
    const at::Tensor once = x.grad().clone();
    loss.backward();
    test::expect_close(x.grad(), DTensor(once * 2).full_tensor(), "twice");
    x.mutable_grad().reset();
    EXPECT_LT(memory.live(), 2 * activation);  // `once` is there
    const auto text = error_of([&] { loss.backward(); });
    EXPECT_NE(text.find("backward through the graph a second time"), std::string::npos) << text;
  });
}

}  // namespace
