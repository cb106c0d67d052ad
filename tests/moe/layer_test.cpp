// The layer on a mesh equals the layer on one device: outputs, losses, gradients, counts and drops. Routers,
// dispatchers, meshes, placements and batches are random; some leave experts or ranks without tokens.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "layer_cases.h"
#include "moe/experts/experts.h"
#include "moe/routing/router_parts.h"

namespace dtensor::test {
namespace {

using namespace layer;

void check_case(std::uint64_t seed) {
  const auto c = draw_case(seed);
  const auto v = draw_values(c);
  const auto wanted = run_regular(c, v);
  try {
    run_local(c.ranks(), [&](Communicator world) { expect_equal(run_on(c, v, world), wanted, c); });
  } catch (const std::exception& e) {
    ADD_FAILURE() << c.str() << "\n" << e.what();
  }
}

TEST(MoeLayer, EqualsOneDeviceOnEveryMesh) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    check_case(seed);
    if (HasFailure()) break;
  }
}

// Every run uses other seeds; the seed of a failure is printed.
RC_GTEST_PROP(MoeLayer, RandomLayerEqualsOneDevice, ()) {
  const auto seed = *rc::gen::inRange<std::uint64_t>(150, 1u << 30);
  check_case(seed);
  RC_ASSERT(!testing::Test::HasFailure());
}

// Reference: every expert on every token, weighted by the router, without dispatch.
at::Tensor dense_layer(const Case& c, const Values& v, const at::Tensor& x) {
  const auto rows = x.reshape({-1, c.options.hidden});
  const auto& p = v.parameters;
  const auto routing = route(rows, p[0], c.options.router);
  auto sum = at::zeros_like(rows);
  for (std::int64_t e = 0; e < c.options.router.experts; ++e) {
    const auto weight = (routing.weights * (routing.experts == e)).sum(1, true);
    const bool gated = is_gated(c.options.experts.activation);
    const bool before = c.options.score_before_experts;  // experts map zeros to zeros
    const auto y = run_expert(before ? weight * rows : rows, {p[1][e], p[2][e], gated ? p[3][e] : at::Tensor()},
                              c.options.experts.activation);
    sum = sum + (before ? y : weight * y);
  }
  const bool gated = is_gated(c.options.experts.activation);
  const auto shared = p.size() - (gated ? 3 : 2) - (c.options.shared_gate ? 1 : 0);
  if (c.options.shared_ffn > 0) {
    const auto y = run_expert(rows, {p[shared], p[shared + 1], gated ? p[shared + 2] : at::Tensor()},
                              c.options.experts.activation);
    // Qwen2-MoE: sigmoid(shared_expert_gate(x)) * shared_expert(x)
    sum = sum + (c.options.shared_gate ? 1 / (1 + (-at::matmul(rows, p.back().t())).exp()) * y : y);
  }
  return sum.view_as(x);
}

TEST(MoeLayer, EqualsTheWeightedSumOfAllExperts) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    auto c = draw_case(seed);
    c.kind = DispatchKind::all_to_all;
    const auto v = draw_values(c);
    expect_close(run_regular(c, v).y, dense_layer(c, v, v.x), c.str());
  }
}

}  // namespace
}  // namespace dtensor::test
