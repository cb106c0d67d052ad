// Products in float8: their error, and that all layouts round alike.
#include "dtensor/nn/float8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/dry_run.h"
#include "dtensor/fully_shard.h"
#include "dtensor/nn.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

struct Results {
  at::Tensor y, dx, dw;
};

Results run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad, bool float8 = true) {
  const at::Tensor input = x.detach().requires_grad_(), matrix = weight.detach().requires_grad_();
  const at::Tensor y = float8 ? nn::float8_linear(input, matrix) : at::linear(input, matrix);
  y.backward(grad);
  return {y.detach(), input.grad(), matrix.grad()};
}

double relative_error(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// e4m3 has 4 significant bits and e5m2 3: the rounding errors of one operand are 2^-5 and 2^-4 at most, and smaller in
// a norm over many elements.
TEST(Float8, ErrorIsThatOfTheFormats) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Draw draw(seed);
    const auto n = 16 * draw.integer(1, 6), k = 16 * draw.integer(1, 6), rows = 16 * draw.integer(1, 4);
    const double size = std::pow(10.0, static_cast<double>(draw.integer(-6, 6)));
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      if (dtype == at::kHalf && (size > 10 || size < 0.1)) continue;
      const auto x = (draw.normal({2, rows, k}) * size).to(dtype), weight = draw.normal({n, k}).to(dtype);
      const auto grad = (draw.normal({2, rows, n}) / size).to(dtype);
      const auto got = run(x, weight, grad);
      const auto wide = run(x.to(at::kDouble), weight.to(at::kDouble), grad.to(at::kDouble), false);
      EXPECT_EQ(got.y.scalar_type(), dtype);
      EXPECT_LT(relative_error(got.y, wide.y), 0.05);
      EXPECT_LT(relative_error(got.dx, wide.dx), 0.08);
      EXPECT_LT(relative_error(got.dw, wide.dw), 0.08);
      EXPECT_GT(relative_error(got.y, wide.y), 0.01);  // it is not a product of the operands' dtype
    }
  }
}

// Rows over one axis, and columns or contracted dimensions over another.
TEST(Float8, LayoutsEqualOneDevice) {
  for (const auto& shape : std::vector<Shape>{{1}, {2}, {3}, {2, 2}}) {
    on_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(5);
      const auto x = draw.normal({6, 16, 48}, at::kFloat), weight = draw.normal({32, 48}, at::kFloat),
                 grad = draw.normal({6, 16, 32}, at::kFloat);
      const auto expected = run(x, weight, grad);
      for (const Placement& of_weight : std::vector<Placement>{Replicate(), Shard(0), Shard(1)}) {
        Placements rows{Shard(0)}, matrix{Replicate()};
        if (mesh.ndim() == 2) rows.push_back(Replicate()), matrix.push_back(of_weight);
        if (mesh.ndim() == 1) matrix[0] = of_weight;
        const auto got = run(distribute_tensor(x, mesh, rows), distribute_tensor(weight, mesh, matrix),
                             distribute_tensor(grad, mesh, rows));
        expect_close(got.y, expected.y, "y", 1e-5);
        expect_close(got.dx, expected.dx, "gradient of x", 1e-5);
        expect_close(got.dw, expected.dw, "gradient of the weight", 1e-4);
      }
    });
  }
}

TEST(Float8, NoRowsGiveNoRowsAndZeroGradients) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = at::empty({0, 16}), weight = at::ones({32, 16}), grad = at::empty({0, 32});
    EXPECT_EQ(run(x, weight, grad).y.sizes(), at::IntArrayRef({0, 32}));
    const auto got = run(distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(weight, mesh, {Replicate()}),
                         distribute_tensor(grad, mesh, {Shard(0)}));
    EXPECT_EQ(got.y.sizes(), at::IntArrayRef({0, 32}));
    expect_close(got.dw, at::zeros({32, 16}), "gradient of the weight", 0);
  });
}

// The largest magnitudes are all that is communicated besides what at::linear communicates.
TEST(Float8, CommunicatesTheLargestMagnitudes) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(6);
    const auto x = distribute_tensor(draw.normal({4, 16, 32}, at::kFloat), mesh, {Shard(0)});
    const auto weight = distribute_tensor(draw.normal({32, 32}, at::kFloat), mesh, {Replicate()});
    const auto bytes = [&](bool float8) {
      CommDebugMode counts;
      run(x, weight, x, float8);
      return counts.total().bytes;
    };
    EXPECT_EQ(bytes(true), bytes(false) + 2 * 8);  // of x and of the gradient, a double each
  });
}

TEST(Float8, ScopeChoosesModulesAndIsRestoredByRecomputation) {
  const at::NoGradGuard initial;
  nn::Linear even(32, 16), odd(32, 10);
  const auto x = Draw(7).normal({16, 32}, at::kFloat);
  const auto from_even = even.forward(x), from_odd = odd.forward(x);
  at::Tensor gradient[2];
  {
    const nn::Float8Scope scope;
    EXPECT_FALSE(at::equal(even.forward(x), from_even));
    EXPECT_TRUE(at::equal(even.forward(x), nn::float8_linear(x, even.weight) + even.bias));
    EXPECT_TRUE(at::equal(odd.forward(x), from_odd));
  }
  EXPECT_TRUE(at::equal(even.forward(x), from_even));
  const at::AutoGradMode grad(true);
  for (const bool recompute : {false, true}) {
    const auto leaf = x.clone().requires_grad_();
    at::Tensor y;
    {
      const nn::Float8Scope scope;
      const auto fn = [&](const at::Tensor& in) { return even.forward(in); };
      y = recompute ? checkpoint(fn, leaf) : fn(leaf);
    }
    y.square().sum().backward();
    gradient[recompute] = leaf.grad();
  }
  EXPECT_TRUE(at::equal(gradient[0], gradient[1]));
}

TEST(Float8, InvalidCallsAreErrors) {
  EXPECT_NE(error_of([] {
              nn::float8_linear(at::ones({16, 10}), at::ones({16, 10}));
            }).find("multiples of 16"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              nn::float8_linear(at::ones({16, 16}, at::kDouble), at::ones({16, 16}, at::kDouble));
            }).find("got Double"),
            std::string::npos);
  const auto x = at::ones({16, 16}).requires_grad_();
  const auto y = nn::float8_linear(x, at::ones({16, 16}));
  EXPECT_NE(error_of([&] { torch::autograd::grad({y.sum()}, {x}, {}, true, true); }).find("without create_graph"),
            std::string::npos);
}

}  // namespace
}  // namespace dtensor::test
