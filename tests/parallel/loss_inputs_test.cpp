// Inputs and context of losses: tensors that are written before backward, autocast, half types, ranks outside the mesh.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

// A loader may reuse one tensor for all targets, and a schedule may change the weights.
TEST(CrossEntropy, TargetsAndWeightsMayChangeBeforeBackward) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(1);
    const at::Tensor values = draw.normal({4, 5}), classes = draw.integers({4}, 5), w = draw.normal({5}).abs();
    const at::Tensor expected = values.clone().requires_grad_();
    at::cross_entropy_loss(expected, classes, w, at::Reduction::Mean, -100, 0.2).backward();
    for (const bool graph : {false, true}) {
      for (const int on_mesh : {0, 1, 2}) {  // How many of logits and targets are DTensors.
        const at::Tensor targets =
            on_mesh == 2 ? at::Tensor(distribute_tensor(classes, mesh, {Shard(0)})) : classes.clone();
        const at::Tensor logits =
            (on_mesh > 0 ? at::Tensor(distribute_tensor(values, mesh, {Shard(0)})) : values.clone()).requires_grad_();
        const at::Tensor weight = w.clone();
        const at::Tensor loss = cross_entropy(logits, targets, {.weight = weight, .label_smoothing = 0.2});
        targets.zero_();
        weight.fill_(3);
        const auto found = torch::autograd::grad({loss}, {logits}, {}, graph, graph);
        test::expect_close(found[0].detach(), expected.grad(), c10::str("DTensors ", on_mesh, " graph ", graph));
      }
    }
  });
}

// The weight of the head is tied to the embedding. With create_graph, its gradient through the hidden features counts
// once.
TEST(LinearCrossEntropy, TiedWeightHasHigherDerivatives) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(3);
    const at::Tensor words = draw.normal({5, 4}), ids = draw.integers({6}, 5), targets = draw.integers({6}, 5);
    const auto both = [&](const at::Tensor& w, const at::Tensor& loss) {
      const at::Tensor first = torch::autograd::grad({loss}, {w}, {}, true, true)[0];
      return std::pair(first.detach(), torch::autograd::grad({first.square().sum()}, {w})[0]);
    };
    const at::Tensor regular = words.clone().requires_grad_();
    const auto wanted =
        both(regular, at::cross_entropy_loss(at::linear(at::embedding(regular, ids).tanh(), regular), targets));
    for (const Placement& where : {Replicate(), Shard(0)}) {
      const at::Tensor w = distribute_tensor(words, mesh, {where}).requires_grad_();
      const at::Tensor hidden = at::embedding(w, distribute_tensor(ids, mesh, {Shard(0)})).tanh();
      const auto found = both(w, linear_cross_entropy(hidden, w, distribute_tensor(targets, mesh, {Shard(0)})));
      test::expect_close(found.first, wanted.first, "first derivative, words " + to_string(Placements{where}));
      test::expect_close(found.second, wanted.second, "second derivative, words " + to_string(Placements{where}));
    }
  });
}

// Backward recomputes the logits outside of autocast; they must equal those of forward.
TEST(LinearCrossEntropy, AutocastMatchesLinearUnderAutocast) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      test::Draw draw(2);
      const at::Tensor h = draw.normal({6, 4}, type), w = draw.normal({5, 4}, at::kFloat) * 3;
      const at::Tensor targets = draw.integers({6}, 5);
      const auto gradients = [&](const Placement& rows, const Placement& classes, auto&& loss_of) {
        const at::Tensor hidden = distribute_tensor(h, mesh, {rows}).requires_grad_();
        const at::Tensor weight = distribute_tensor(w, mesh, {classes}).requires_grad_();
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const at::Tensor loss = loss_of(hidden, weight);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
        loss.backward();
        EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
        return std::vector{DTensor(loss.detach()).full_tensor(), DTensor(hidden.grad()).full_tensor(),
                           DTensor(weight.grad()).full_tensor()};
      };
      const auto expected = gradients(Replicate(), Replicate(), [&](const at::Tensor& x, const at::Tensor& head) {
        return at::cross_entropy_loss(at::linear(x, head), targets);
      });
      for (const Placement& classes : {Replicate(), Shard(0), Shard(0).as_storage()}) {
        const auto actual = gradients(Shard(0), classes, [&](const at::Tensor& x, const at::Tensor& head) {
          return linear_cross_entropy(x, head, targets, {}, 2);
        });
        for (std::size_t i = 0; i < 3; ++i) test::expect_close(actual[i], expected[i], c10::str(type, i), 2e-2);
        // A token's gradient of the logits sums to zero over the classes if it uses the softmax of the forward pass.
        EXPECT_LT(actual[2].sum(0).abs().max().item<float>(), 5e-3) << type;
      }
    }
  });
}

// The gradient is a sum over more chunks than bfloat16 can count.
TEST(LinearCrossEntropy, HalfPrecisionWeightGradientIsRoundedOnce) {
  const std::int64_t tokens = 1024;
  const at::Tensor hidden = at::ones({tokens, 2}, at::kBFloat16);
  const at::Tensor weight = at::zeros({2, 2}, at::kBFloat16).requires_grad_();
  linear_cross_entropy(hidden, weight, at::zeros({tokens}, at::kLong), {.reduction = LossReduction::sum}, 2).backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
  test::expect_close(weight.grad(), at::tensor({-512, -512, 512, 512}).view({2, 2}).to(at::kBFloat16), "gradient");
}

// A pipeline stage has handles to the loss of another stage. Computing with them does nothing and raises no error.
TEST(CrossEntropy, RanksOutsideTheMeshDoNotParticipate) {
  run_local(3, [](Communicator world) {
    const DeviceMesh mesh = device_mesh(world, at::kCPU, {0, 1}, {2}), last = device_mesh(world, at::kCPU, {2}, {1});
    test::Draw draw(5);
    const at::Tensor h = draw.normal({4, 3}), w = draw.normal({5, 3}), targets = draw.integers({4}, 5);
    const at::Tensor regular_h = h.clone().requires_grad_(), regular_w = w.clone().requires_grad_();
    const at::Tensor expected =
        at::cross_entropy_loss(at::linear(regular_h, regular_w), targets, {}, at::Reduction::None);
    (expected.sum() + expected.mean()).backward();
    for (const bool linear : {false, true}) {
      const at::Tensor hidden = distribute_tensor(h, last, {Replicate()}).requires_grad_();
      const at::Tensor weight = distribute_tensor(w, mesh, {Shard(0)}).requires_grad_();
      const at::Tensor x = DTensor(hidden).redistribute(mesh, {Replicate()});
      const at::Tensor classes = distribute_tensor(targets, mesh, {Replicate()});
      const auto loss_of = [&](LossReduction reduction) {
        return linear ? linear_cross_entropy(x, weight, classes, {.reduction = reduction})
                      : cross_entropy(at::linear(x, weight), classes, {.reduction = reduction});
      };
      const at::Tensor each = loss_of(LossReduction::none), mean = loss_of(LossReduction::mean);
      EXPECT_EQ(each.sizes(), at::IntArrayRef({4}));
      EXPECT_EQ(mean.dim(), 0);
      (each.sum() + mean).backward();
      if (mesh.is_member()) test::expect_close(weight.grad(), regular_w.grad(), "weight");
      if (last.is_member()) test::expect_close(hidden.grad(), regular_h.grad(), "hidden");
    }
  });
}

// Like other regular tensors that are distributed, the weights are broadcast from the first rank.
TEST(CrossEntropy, WeightsAreBroadcastFromTheFirstRank) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(3);
    const at::Tensor values = draw.normal({4, 6}), targets = draw.integers({4}, 6), w = draw.normal({6}).abs();
    const at::Tensor mine = w + mesh.communicator().rank(), head = draw.normal({6, 6});
    for (const Placement& p : {Shard(0), Shard(1)}) {
      const at::Tensor logits = distribute_tensor(values, mesh, {p});
      const at::Tensor expected = at::cross_entropy_loss(values, targets, w, at::Reduction::Mean, -100, 0.2);
      const CrossEntropyOptions options{.weight = mine, .label_smoothing = 0.2};
      test::expect_close(cross_entropy(logits, targets, options), expected, p.str());
      const at::Tensor of_linear =
          at::cross_entropy_loss(at::linear(values, head), targets, w, at::Reduction::Mean, -100, 0.2);
      const at::Tensor hidden = distribute_tensor(values, mesh, {Shard(0)});
      test::expect_close(linear_cross_entropy(hidden, head, targets, options), of_linear, p.str());
    }
  });
}

// As in PyTorch: class weights would be rounded to integers. One rank has no class, or no token.
TEST(CrossEntropy, IntegerLogitsAreErrorOnAllRanks) {
  test::on_mesh({3}, [](const DeviceMesh& mesh) {
    const at::Tensor targets = at::zeros({2}, at::kLong), weight = at::tensor({0.5, 2.0});
    const at::Tensor classes = distribute_tensor(at::ones({2, 2}, at::kLong), mesh, {Shard(1)});
    const at::Tensor hidden = distribute_tensor(at::ones({2, 4}), mesh, {Shard(0)}), head = at::ones({2, 4}, at::kLong);
    const std::string logits = test::error_of([&] { cross_entropy(classes, targets, {.weight = weight}); });
    EXPECT_NE(logits.find("expected floating-point values, got Long"), std::string::npos) << logits;
    const std::string linear = test::error_of([&] { linear_cross_entropy(hidden.to(at::kLong), head, targets); });
    EXPECT_NE(linear.find("expected floating-point values, got Long"), std::string::npos) << linear;
    const std::string mixed = test::error_of([&] { linear_cross_entropy(hidden, head, targets); });
    EXPECT_NE(mixed.find("got hidden Float and weight Long"), std::string::npos) << mixed;
  });
}

TEST(CrossEntropy, WeightsMayBeOnMoreRanksThanTheLogits) {
  run_local(3, [](Communicator world) {
    const DeviceMesh mesh = device_mesh(world, at::kCPU, {0, 1}, {2}),
                     all = device_mesh(world, at::kCPU, {0, 1, 2}, {3});
    test::Draw draw(4);
    const at::Tensor values = draw.normal({4, 6}), targets = draw.integers({4}, 6), w = draw.normal({6}).abs();
    const at::Tensor logits = distribute_tensor(values, mesh, {Shard(1)});
    const at::Tensor loss = cross_entropy(logits, targets, {.weight = distribute_tensor(w, all, {Shard(0)})});
    if (mesh.is_member()) test::expect_close(loss, at::cross_entropy_loss(values, targets, w), "loss");
  });
}

}  // namespace
