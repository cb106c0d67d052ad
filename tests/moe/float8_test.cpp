// Experts in float8: their error is that of the formats, and all layouts round as one device does.
#include <gtest/gtest.h>

#include "dtensor/nn/float8.h"
#include "layer_cases.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using namespace layer;

Case float8_case(const Meshes& meshes, ExpertActivation activation) {
  Case c{.seed = 5};
  c.dense = meshes.dense;
  c.sparse = meshes.sparse;
  c.tp = Shard(0);
  c.options.hidden = 32;
  c.options.ffn = 32;
  c.options.shared_ffn = 32;
  c.options.tensor = at::kFloat;
  c.options.router.experts = 12;
  c.options.experts.activation = activation;
  c.input = {8, 5, 32};
  return c;
}

Values values_of(const Case& c) {
  Values v = draw_values(c);
  v.x = v.x.to(at::kFloat);
  v.cotangent = v.cotangent.to(at::kFloat);
  for (auto& p : v.parameters) p = p.to(at::kFloat).mul(0.2);
  // The last tokens decide the scales, so that the others are below the normal range of the formats. With a scale of
  // its own a rank would round them to other numbers.
  v.x.select(0, 7).mul_(is_gated(c.options.experts.activation) ? 300 : 3e4);
  v.cotangent.select(0, 6).mul_(1e9);
  return v;
}

double relative_error(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact.to(at::kDouble)).norm() / exact.to(at::kDouble).norm()).item<double>();
}

// A product that is split over etp is summed in another order, so that a few elements of the next operand round to a
// neighbor.
TEST(Float8Experts, EqualOneDeviceOnEveryMesh) {
  for (const auto activation : {ExpertActivation::swiglu, ExpertActivation::gelu}) {
    for (const auto& meshes : all_meshes()) {
      const auto c = float8_case(meshes, activation);
      const auto v = values_of(c);
      const auto wide = run_regular(c, v);
      const nn::Float8Scope outer;
      const auto wanted = run_regular(c, v);
      const auto small = [](const at::Tensor& t) { return t.narrow(0, 0, 6); };
      EXPECT_GT(relative_error(small(wanted.y), small(wide.y)), 3e-2);
      EXPECT_LT(relative_error(wanted.y, wide.y), 1e-1);
      run_local(c.ranks(), [&](Communicator world) {
        const nn::Float8Scope scope;
        const auto got = run_on(c, v, world);
        EXPECT_LT(relative_error(small(got.y), small(wanted.y)), 4e-3) << c.str();
        EXPECT_LT(relative_error(small(got.dx), small(wanted.dx)), 4e-3) << c.str();
        for (std::size_t i = 1; i < wanted.gradients.size(); ++i) {
          EXPECT_LT(relative_error(got.gradients[i], wanted.gradients[i]), 4e-3) << c.str() << " gradient " << i;
        }
      });
    }
  }
}

// Sizes that are no multiples of 16, and float64, keep the products of their dtype.
TEST(Float8Experts, AreChosenByTheScopeAndTheSizes) {
  const auto passes = [](std::int64_t ffn, at::ScalarType type, bool open) {
    MoeOptions options;
    options.hidden = 32;
    options.ffn = ffn;
    options.tensor = type;
    MixtureOfExperts layer(options);
    MoeCounters counters;
    const MoeCountersScope counting(counters);
    const auto scope = open ? std::make_unique<nn::Float8Scope>() : nullptr;
    layer.forward(at::ones({8, 32}, type)).sum().backward();
    return counters.float8_passes;
  };
  EXPECT_EQ(passes(32, at::kFloat, true), 1);
  EXPECT_EQ(passes(32, at::kBFloat16, true), 1);
  EXPECT_EQ(passes(32, at::kFloat, false), 0);
  EXPECT_EQ(passes(24, at::kFloat, true), 0);
  EXPECT_EQ(passes(32, at::kDouble, true), 0);
}

// A rank and experts without tokens take part in all collectives, and get zeros.
TEST(Float8Experts, EmptyBatchesAndExpertsGetZeroGradients) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"ep"});
    for (const std::int64_t tokens : {0, 1}) {
      const auto c = float8_case({{2, 1}, {1, 2, 1}}, ExpertActivation::swiglu);
      MixtureOfExperts layer(c.options);
      set_parameters(layer, values_of(c));
      apply_expert_parallel(layer, mesh);
      const nn::Float8Scope scope;
      const auto x = distribute_tensor(at::ones({tokens, 32}, at::kFloat), mesh, {Shard(0)}).requires_grad_();
      layer.forward(x).sum().backward();
      const auto gradient = DTensor(layer.experts.w1.grad()).full_tensor();
      EXPECT_TRUE(gradient.isfinite().all().item<bool>());
      EXPECT_EQ(gradient.flatten(1).abs().amax(1).gt(0).sum().item<std::int64_t>(), tokens * 2);
    }
  });
}

}  // namespace
}  // namespace dtensor::test
