// The operator dtensor::gated_product: strategies, gradients of every layout, saved memory and dry runs.
#include "internal/gated_product.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "dtensor/debug.h"
#include "dtensor/dry_run.h"
#include "dtensor/inspect.h"
#include "dtensor/rule.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

const std::pair<GateKind, const char*> kKinds[] = {
    {GateKind::silu, "silu"}, {GateKind::gelu, "gelu"}, {GateKind::gelu_tanh, "gelu_tanh"}};

at::Tensor by_aten(GateKind kind, const at::Tensor& gate, const at::Tensor& up) {
  if (kind == GateKind::silu) return at::silu(gate) * up;
  return at::gelu(gate, kind == GateKind::gelu ? "none" : "tanh") * up;
}

TEST(GatedProduct, RulesAreSound) {
  Draw draw(5);
  const at::Tensor x = draw.normal({5, 4}), y = draw.normal({5, 4}), up = draw.normal({5, 4});
  for (const auto& [kind, name] : kKinds) {
    for (const std::int64_t ranks : {2, 3}) {
      const RuleReport forward = verify_rule("dtensor::gated_product", {x, y, name}, ranks);
      const RuleReport backward = verify_rule("dtensor::gated_product_backward", {up, x, y, name}, ranks);
      EXPECT_EQ(forward.sound, 5);  // Replicate, two shards, a Partial `up` of sum and avg.
      EXPECT_EQ(backward.sound, 5);
      EXPECT_TRUE(forward.unsound.empty() && backward.unsound.empty());
    }
  }
}

// Values and derivatives, first those of the operator's derivative and then those of a graph, on regular tensors.
std::vector<at::Tensor> results_of(const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& product,
                                   const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad) {
  const at::Tensor y = product(gate, up);
  const auto graph = torch::autograd::grad({y}, {gate, up}, {grad}, true, true);
  const auto second = torch::autograd::grad({graph[0] * graph[1]}, {gate, up}, {grad}, true);
  y.backward(grad);
  return {y.detach(), gate.grad(), up.grad(), graph[0].detach(), graph[1].detach(), second[0], second[1]};
}

TEST(GatedProduct, HasTheBitsOfAtenInEveryLayout) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const auto& [kind, name] : kKinds) {
      Draw draw(6);
      const at::Tensor gate = draw.normal({6, 10}, at::kBFloat16), up = draw.normal({6, 10}, at::kBFloat16);
      const at::Tensor grad = draw.normal({6, 10}, at::kBFloat16);
      const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(); };
      const auto aten = [kind = kind](const auto& g, const auto& u) { return by_aten(kind, g, u); };
      const auto fused = [kind = kind](const auto& g, const auto& u) { return gated_product(kind, g, u); };
      const auto expected = results_of(aten, leaf(gate), leaf(up), grad);
      const auto compare = [&, name = name](const auto& found, const auto& full, const std::string& what) {
        for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(full(found[i]), expected[i])) << name << what << i;
        // Sums of several gradients have another order.
        for (std::size_t i = 5; i < 7; ++i) {
          expect_close(full(found[i]).to(at::kDouble), expected[i].to(at::kDouble), name + what, 5e-2);
        }
      };
      compare(
          results_of(fused, leaf(gate), leaf(up), grad), [](const at::Tensor& t) { return t; }, "regular");
      for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
        const auto placed = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {p}); };
        const auto found = results_of(fused, placed(gate).requires_grad_(), placed(up).requires_grad_(), placed(grad));
        for (const at::Tensor& t : found) EXPECT_EQ(DTensor(t).placements(), Placements{p});
        compare(
            found, [](const at::Tensor& t) { return DTensor(t).full_tensor(); }, to_string(Placements{p}));
      }
    }
  });
}

// The decision cache and explain() serve the operator, and a Partial `up` is not reduced.
TEST(GatedProduct, IsAnOperatorOfTheEngine) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor gate = distribute_tensor(at::ones({4, 6}), mesh, {Shard(1)});
    const at::Tensor up = distribute_tensor(at::ones({4, 6}), mesh, {Replicate()});
    const std::string text = explain([&] { gated_product(GateKind::silu, gate, up); }, Explain::decisions);
    EXPECT_NE(text.find("dtensor::gated_product"), std::string::npos) << text;
    const at::Tensor sum = DTensor::from_local(at::ones({4, 6}), mesh, {Partial()});
    const at::Tensor y = gated_product(GateKind::silu, distribute_tensor(at::ones({4, 6}), mesh, {Replicate()}), sum);
    EXPECT_EQ(DTensor(y).placements(), Placements{Partial()});
    const CacheStats before = cache_stats();
    gated_product(GateKind::silu, gate, up);
    EXPECT_EQ(cache_stats().misses, before.misses);
  });
}

// A dry run predicts the peak of both passes to the byte.
TEST(GatedProduct, DryRunPredictsItsMemory) {
  const auto step = [] {
    const at::Tensor gate = at::ones({64, 256}).requires_grad_(), up = at::ones({64, 256}).requires_grad_();
    gated_product(GateKind::silu, gate, up).sum().backward();
  };
  std::int64_t real = 0;
  run_local(1, [&](const Communicator& world) {
    const StepRecorder recorder;
    step();
    real = recorder.report(world).peak.bytes;
  });
  const std::int64_t predicted = dry_run({.ranks = 1}, [&](const Communicator&) { step(); }).peak.bytes;
  EXPECT_GT(real, 64 * 256 * 4);
  EXPECT_EQ(predicted, real);
}

}  // namespace
}  // namespace dtensor::test
