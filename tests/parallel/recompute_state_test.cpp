// The recomputation of a segment repeats its forward: under autocast, within scopes that have ended, and without what
// forward did not compute.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;
using dtensor::test::error_of;

// As torch.autocast, this clears the cache of casts at its end.
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

// A weight that is used in and after the segment, over steps that change it, with backward within autocast or after it.
// The cache of casts is global to the process, so the test has one rank.
TEST(Checkpoint, RecomputationCastsTheCurrentWeights) {
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
        // Gradients of two casts are added in float, those of one in bfloat16.
        test::expect_close(actual[i], expected[i], c10::str("step ", i / 2, " inside ", inside), 4e-2);
      }
    }
  });
}

// As without recomputation: optimizers skip parameters without a gradient, but not those whose gradient is zero.
TEST(Checkpoint, UnusedTensorsHaveNoGradient) {
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

// A program that prints the loss of the last step keeps its graph alive during the next step.
TEST(Checkpoint, BackwardFreesKeptResults) {
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
    EXPECT_LT(memory.live(), 2 * activation);  // `once` is still alive.
    const auto text = error_of([&] { loss.backward(); });
    EXPECT_NE(text.find("backward through the graph a second time"), std::string::npos) << text;
  });
}

// The gradient of a dropout is its mask. Token ids are regular tensors, and a second world has separate random numbers.
TEST(Checkpoint, DrawsTheSameRandomNumbers) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    const DeviceMesh other = init_device_mesh(world.subgroup({0, 1}, "second world"), at::kCPU, {2});
    manual_seed(mesh, 3);
    manual_seed(other, 4);
    const at::Tensor w = distribute_tensor(at::ones({6, 8}), mesh, {Replicate()}).requires_grad_();
    const at::Tensor second = distribute_tensor(at::ones({6, 8}), other, {Shard(1)}).requires_grad_();
    const auto masks = [&](const at::Tensor& ids) {
      return std::vector{at::dropout(at::embedding(w, ids), 0.5, true), at::dropout(second, 0.5, true)};
    };
    const auto nested = [&](const std::vector<at::Tensor>& in) {
      return checkpoint([&](const std::vector<at::Tensor>& ids) { return masks(ids[0]); }, in);
    };
    const auto y = checkpoint(nested, {at::arange(6, at::kLong)});
    const RngState after = get_rng_state(mesh), after_second = get_rng_state(other);
    torch::autograd::backward({y[0].sum(), y[1].sum()});
    test::expect_close(w.grad(), DTensor(y[0].detach()).full_tensor(), "embeddings");
    test::expect_close(second.grad(), DTensor(y[1].detach()).full_tensor(), "second world");
    EXPECT_TRUE(get_rng_state(mesh) == after && get_rng_state(other) == after_second);
  });
}

// Scopes that end before backward, and scopes that begin after forward.
TEST(Checkpoint, FactoriesAndBatchRowsMatchTheForward) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    manual_seed(mesh, 3);
    const at::Tensor x = distribute_tensor(at::ones({4, 8}), mesh, {Shard(0)}).requires_grad_();
    const auto check = [&](const char* what, const at::Tensor& y) {
      x.mutable_grad().reset();
      y.sum().backward();
      test::expect_close(x.grad(), DTensor(y.detach()).full_tensor(), what);
    };
    const auto mask = [](const at::Tensor& t) { return at::dropout(t, 0.5, true); };
    const auto draw = [](const at::Tensor& t) { return t * at::rand({4, 8}); };
    const auto in_scopes = [&](const auto& body) {
      const MicrobatchRandomScope rows({4, 4, 8});
      const MeshScope scope(mesh);
      return checkpoint(body, x);
    };
    check("rows", in_scopes(mask));
    check("factories", in_scopes(draw));
    bool regular = true;
    const at::Tensor outside = checkpoint(
        [&](const at::Tensor& t) {
          regular = regular && !is_dtensor(at::ones({8}));
          return mask(t);
        },
        x);
    const MicrobatchRandomScope rows({4, 4, 8});
    const MeshScope scope(mesh);
    check("scopes of backward", outside);
    EXPECT_TRUE(regular);
    EXPECT_TRUE(is_dtensor(at::ones({8})));
  });
}

// The backward pass inside a segment covers only the segment's inputs, so a nested segment must use the requested
// inputs of the outer pass.
TEST(Checkpoint, NestedSegmentsRefuseGradientsOfCapturedTensors) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor w = distribute_tensor(at::ones({4, 4}), mesh, {Replicate()}).requires_grad_();
    const auto inner = [&](const at::Tensor& in) { return at::mm(in, w).exp(); };
    const auto outer = [&](const at::Tensor& in) { return checkpoint(inner, in); };
    const auto loss = [&] { return checkpoint(outer, x * 2).sum(); };
    const at::Tensor held = w * 1;
    const auto some = error_of([&] {
      torch::autograd::grad({loss()}, {x, w}, {}, false, false, /*allow_unused=*/true);
    });
    EXPECT_NE(some.find("a recomputed segment captures"), std::string::npos) << some;
    const auto inputs = error_of([&] { torch::autograd::backward({loss()}, {}, false, false, {x, w}); });
    EXPECT_NE(inputs.find("a recomputed segment captures"), std::string::npos) << inputs;
    EXPECT_EQ(error_of([&] { torch::autograd::grad({loss()}, {x}); }), "no error");
  });
}

// An input of the recomputation that outlives it is an ordinary leaf after the pass, also if the pass failed.
TEST(Checkpoint, InputKeptBySegmentIsALeafAfterwards) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool fails : {false, true}) {
      const at::Tensor x = distribute_tensor(at::ones({4, 3}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
      at::Tensor kept;
      const auto segment = [&](const at::Tensor& in) {
        kept = in;
        const at::Tensor result = in * 3;
        if (result.requires_grad()) {
          result.register_hook([&](const at::Tensor&) { TORCH_CHECK(!fails, "stop"); });
        }
        return result;
      };
      const auto error = error_of([&] { checkpoint(segment, x).sum().backward(); });
      EXPECT_EQ(error.find("stop") != std::string::npos, fails) << error;
      EXPECT_FALSE(kept.grad().defined());
      (kept * 2).sum().backward();
      ASSERT_TRUE(kept.grad().defined());
      test::expect_close(kept.grad(), at::full({4, 3}, 2.0, at::kDouble), "kept");
      if (!fails) test::expect_close(x.grad(), at::full({4, 3}, 3.0, at::kDouble), "input");
    }
  });
}

// A segment returns a captured mask or weight. Such a tensor belongs to the model and must be unchanged in the next
// step.
TEST(Checkpoint, CapturedTensorsMayBeResults) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor values = test::Draw(1).normal({4, 3}), regular = test::Draw(2).normal({3, 3}).requires_grad_();
    const at::Tensor w = distribute_tensor(regular.detach(), mesh, {Shard(0).as_storage()}).requires_grad_();
    const at::Tensor mask = distribute_tensor(at::ones({3}, at::kDouble) * 2, mesh, {Replicate()});
    const at::Tensor x = distribute_tensor(values, mesh, {Shard(0)}).requires_grad_();
    const auto segment = [](const at::Tensor& in, const at::Tensor& weight, const at::Tensor& scale) {
      return std::vector<at::Tensor>{at::linear(in, weight), weight, scale, in};
    };
    const auto loss_of = [](const std::vector<at::Tensor>& r) {
      return (r[0] * r[2]).sum() + r[1].square().sum() + r[3].sum();
    };
    for (int step = 0; step < 2; ++step) {
      loss_of(segment(values, regular, at::ones({3}, at::kDouble) * 2)).backward();
      loss_of(checkpoint([&](const std::vector<at::Tensor>& in) { return segment(in[0], w, mask); }, {x})).backward();
      EXPECT_TRUE(w.is_leaf() && mask.is_leaf() && !mask.requires_grad());
      test::expect_close(w.grad(), regular.grad(), c10::str("step ", step));
    }
  });
}

}  // namespace
