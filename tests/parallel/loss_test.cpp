// Cross entropy on every layout equals PyTorch's on one device: value and gradients, with weights, smoothing, ignored
// targets, z-loss and uneven vocabularies, in one piece and in chunks.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/debug.h"
#include "dtensor/dtensor.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

struct Case {
  CrossEntropyOptions options;
  bool ignored = false;
};

Case draw_case(test::Draw& draw, std::int64_t classes) {
  Case c;
  c.options.reduction = static_cast<LossReduction>(draw.integer(0, 2));
  if (draw.coin()) c.options.weight = draw.normal({classes}).abs().add_(0.1);
  if (draw.coin()) c.options.label_smoothing = 0.2;
  if (draw.coin()) c.options.z_loss = 0.3;
  c.ignored = draw.coin();
  if (c.ignored && draw.coin()) c.options.ignore_index = 1;
  return c;
}

// PyTorch's cross entropy plus the z-loss by its definition. logits [t, c].
at::Tensor reference(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& o) {
  const auto weight = o.weight.defined() ? std::optional(o.weight) : std::nullopt;
  const std::int64_t reductions[] = {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum};
  const at::Tensor loss = at::cross_entropy_loss(logits, targets, weight, reductions[static_cast<int>(o.reduction)],
                                                 o.ignore_index, o.label_smoothing);
  if (o.z_loss == 0) return loss;
  const at::Tensor valid = targets.ne(o.ignore_index).to(logits.scalar_type());
  const at::Tensor z = logits.logsumexp(1).square() * valid * o.z_loss;
  if (o.reduction == LossReduction::none) return loss + z;
  return loss + (o.reduction == LossReduction::sum ? z.sum() : z.sum() / valid.sum());
}

at::Tensor draw_targets(test::Draw& draw, const test::Shape& sizes, std::int64_t classes, const Case& c) {
  at::Tensor targets = draw.integers(sizes, classes);
  if (!c.ignored) return targets;
  const at::Tensor drop = draw.integers(sizes, 3).eq(0);
  return targets.masked_fill(drop, c.options.ignore_index);
}

// A scalar of the loss whose gradient differs between elements.
at::Tensor total(const at::Tensor& loss, const at::Tensor& upstream) {
  return loss.dim() > 0 ? (loss * upstream).sum() : loss * 3;
}

std::string text(const DeviceMesh& mesh, const Placements& p, const Case& c) {
  return mesh.str() + to_string(p) + " reduction " + std::to_string(static_cast<int>(c.options.reduction)) +
         " weight " + std::to_string(c.options.weight.defined()) + " smoothing " +
         std::to_string(c.options.label_smoothing) + " z " + std::to_string(c.options.z_loss) + " ignored " +
         std::to_string(c.ignored);
}

TEST(CrossEntropy, MatchesSingleDeviceOnEveryLayout) {
  for (const auto& shape : test::mesh_shapes()) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(11);
      for (int round = 0; round < 24; ++round) {
        const std::int64_t b = draw.integer(1, 4), s = draw.integer(1, 5), classes = draw.integer(2, 9);
        const Case c = draw_case(draw, classes);
        const at::Tensor values = draw.normal({b, s, classes}) * 3, targets = draw_targets(draw, {b, s}, classes, c);
        const at::Tensor upstream = draw.normal({b, s});
        const at::Tensor regular = values.clone().requires_grad_();
        const at::Tensor expected = reference(regular.flatten(0, 1), targets.flatten(), c.options);
        total(expected, upstream.flatten()).backward();
        const Placements placements = draw.placements(mesh, 3);
        const std::string what = text(mesh, placements, c);
        const at::Tensor leaf = distribute_tensor(values, mesh, Placements(shape.size())).requires_grad_();
        const bool partial = to_string(placements).find('P') != std::string::npos;
        const at::Tensor logits = partial ? leaf : DTensor(leaf).redistribute(placements);
        const at::Tensor loss = cross_entropy(logits, targets, c.options);
        test::expect_close(loss.detach(), expected.detach().view(loss.sizes()), what);
        total(loss, upstream).backward();
        test::expect_close(leaf.grad(), regular.grad(), "gradient " + what);
      }
    });
  }
}

TEST(LinearCrossEntropy, MatchesSingleDeviceInChunks) {
  for (const auto& shape : test::mesh_shapes()) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(12);
      for (int round = 0; round < 16; ++round) {
        const std::int64_t b = draw.integer(1, 4), s = draw.integer(1, 5), classes = draw.integer(2, 9);
        const Case c = draw_case(draw, classes);
        const at::Tensor h = draw.normal({b, s, 4}), w = draw.normal({classes, 4});
        const at::Tensor targets = draw_targets(draw, {b, s}, classes, c), upstream = draw.normal({b, s});
        const at::Tensor regular_h = h.clone().requires_grad_(), regular_w = w.clone().requires_grad_();
        const at::Tensor expected =
            reference(at::linear(regular_h, regular_w).flatten(0, 1), targets.flatten(), c.options);
        total(expected, upstream.flatten()).backward();
        const Placements hidden_at = draw.placements(mesh, 3, false);
        Placements weight_at = draw.placements(mesh, 2, false);
        for (Placement& p : weight_at) p = p.is_shard() && draw.coin() ? p.as_storage() : p;
        const at::Tensor hidden = distribute_tensor(h, mesh, hidden_at).requires_grad_();
        const at::Tensor weight = distribute_tensor(w, mesh, weight_at).requires_grad_();
        const std::string what = to_string(hidden_at) + to_string(weight_at) + text(mesh, {}, c);
        const at::Tensor loss = linear_cross_entropy(hidden, weight, targets, c.options, draw.integer(0, 6));
        test::expect_close(loss.detach(), expected.detach().view(loss.sizes()), what);
        total(loss, upstream).backward();
        test::expect_close(hidden.grad(), regular_h.grad(), "hidden " + what);
        test::expect_close(weight.grad(), regular_w.grad(), "weight " + what);
        EXPECT_EQ(DTensor(weight.grad()).placements().size(), weight_at.size());
      }
    });
  }
}

// First gradients, and gradients of a scalar that depends on them.
struct Twice {
  std::vector<at::Tensor> leaves, shares;
  void run(const at::Tensor& scalar) const {
    const auto first = torch::autograd::grad({scalar}, leaves, {}, true, true);
    at::Tensor sum;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const at::Tensor term = (first[i].square() * shares[i]).sum();
      sum = sum.defined() ? sum + term : term;
    }
    sum.backward();
  }
};

TEST(CrossEntropy, SecondDerivativesMatchSingleDevice) {
  for (const auto& shape : {test::Shape{1}, test::Shape{2}, test::Shape{3}, test::Shape{2, 2}}) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(21);
      for (int round = 0; round < 12; ++round) {
        const std::int64_t b = draw.integer(1, 4), s = draw.integer(1, 5), classes = draw.integer(2, 9);
        const Case c = draw_case(draw, classes);
        const at::Tensor h = draw.normal({b, s, 4}), w = draw.normal({classes, 4}), upstream = draw.normal({b, s});
        const at::Tensor targets = draw_targets(draw, {b, s}, classes, c);
        const bool linear = draw.coin();
        const Twice regular{{h.clone().requires_grad_(), w.clone().requires_grad_()},
                            {draw.normal({b, s, 4}), draw.normal({classes, 4})}};
        const Placements hidden_at = draw.placements(mesh, 3, false), weight_at = draw.placements(mesh, 2, false);
        const Twice split{{distribute_tensor(h, mesh, hidden_at).requires_grad_(),
                           distribute_tensor(w, mesh, weight_at).requires_grad_()},
                          regular.shares};
        const auto logits = [](const Twice& t) { return at::linear(t.leaves[0], t.leaves[1]); };
        regular.run(total(reference(logits(regular).flatten(0, 1), targets.flatten(), c.options), upstream.flatten()));
        const at::Tensor loss = linear ? linear_cross_entropy(split.leaves[0], split.leaves[1], targets, c.options, 3)
                                       : cross_entropy(logits(split), targets, c.options);
        split.run(total(loss, upstream));
        const std::string what = to_string(hidden_at) + to_string(weight_at) + text(mesh, {}, c);
        for (std::size_t i = 0; i < 2; ++i) {
          test::expect_close(split.leaves[i].grad(), regular.leaves[i].grad(), what, 1e-8);
        }
      }
    });
  }
}

TEST(CrossEntropy, CommunicatesScalarsPerTokenInsteadOfLogits) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(13);
    const at::Tensor logits = distribute_tensor(draw.normal({8, 500}), mesh, {Shard(1)}).requires_grad_();
    const at::Tensor targets = distribute_tensor(draw.integers({8}, 500), mesh, {Replicate()});
    const CommDebugMode comms;
    cross_entropy(logits, targets, {.label_smoothing = 0.1, .z_loss = 1e-4}).backward();
    EXPECT_EQ(comms.total("all_reduce", Phase::forward).calls, 2) << comms.table();
    EXPECT_EQ(comms.total("", Phase::backward).calls, 0) << comms.table();
    EXPECT_LE(comms.total().bytes, 8 * 8 * 8) << comms.table();
  });
}

// The logits of all tokens take 2 MB on each rank, those of a chunk 128 KB; a few chunks are allocated at once.
TEST(LinearCrossEntropy, AllocatesLogitsOfOneChunkOnly) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(15);
    const at::Tensor hidden = distribute_tensor(draw.normal({512, 4}), mesh, {Replicate()}).requires_grad_();
    const at::Tensor weight = distribute_tensor(draw.normal({1000, 4}), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor targets = distribute_tensor(draw.integers({512}, 1000), mesh, {Replicate()});
    const auto peak = [&](std::int64_t chunk) {
      const MemoryTimeline memory;
      linear_cross_entropy(hidden, weight, targets, {}, chunk).backward();
      return memory.peak().bytes;
    };
    EXPECT_GT(peak(512), std::int64_t{2} << 20);
    EXPECT_LT(peak(32), std::int64_t{1} << 20);
  });
}

TEST(CrossEntropy, RefusesInvalidArguments) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor logits = distribute_tensor(at::randn({3, 5}), mesh, {Shard(1)}).requires_grad_();
    EXPECT_ANY_THROW(cross_entropy(logits, at::full({3}, 5, at::kLong)));
    EXPECT_ANY_THROW(cross_entropy(logits, at::zeros({3})));
    EXPECT_ANY_THROW(cross_entropy(logits, at::zeros({4}, at::kLong)));
    const at::Tensor none = cross_entropy(logits, at::full({3}, -100, at::kLong));
    EXPECT_TRUE(std::isnan(DTensor(none.detach()).full_tensor().item<float>()));  // As in PyTorch.
    const at::Tensor half = cross_entropy(logits.detach().to(at::kBFloat16), at::zeros({3}, at::kLong));
    EXPECT_EQ(half.scalar_type(), at::kFloat);
  });
}

// The same cases with ATen's function on sharded classes, which needs the rules of many operators.
TEST(AtenCrossEntropy, MatchesSingleDeviceOnShardedClasses) {
  for (const auto& shape : {test::Shape{2}, test::Shape{3}, test::Shape{2, 2}}) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      test::Draw draw(14);
      for (int round = 0; round < 12; ++round) {
        const std::int64_t tokens = draw.integer(1, 6), classes = draw.integer(2, 9);
        Case c = draw_case(draw, classes);
        c.options.z_loss = 0;
        const at::Tensor values = draw.normal({tokens, classes}), targets = draw_targets(draw, {tokens}, classes, c);
        const at::Tensor upstream = draw.normal({tokens}), regular = values.clone().requires_grad_();
        const at::Tensor expected = reference(regular, targets, c.options);
        total(expected, upstream).backward();
        Placements at_classes(shape.size(), Shard(0));
        at_classes.back() = Shard(1);
        const at::Tensor logits = distribute_tensor(values, mesh, at_classes).requires_grad_();
        const at::Tensor loss = reference(logits, targets, c.options);
        test::expect_close(loss.detach(), expected.detach(), text(mesh, at_classes, c));
        total(loss, upstream).backward();
        test::expect_close(logits.grad(), regular.grad(), "gradient " + text(mesh, at_classes, c));
      }
    });
  }
}

}  // namespace
