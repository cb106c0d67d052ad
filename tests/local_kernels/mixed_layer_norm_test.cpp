// Layer norm of half-precision input with float parameters: kernels and DTensors against float64, and the memory.
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/debug.h"
#include "dtensor/nn.h"
#include "support/gpu_kernels.h"
#include "support/norm_rows.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

// One unit in the last place of the type, for values of size 1.
double unit_of(at::ScalarType type) { return type == at::kHalf ? 1e-3 : 8e-3; }

TEST(MixedLayerNorm, KernelsEqualFloat64) {
  test::Draw draw(51);
  for (int round = 0; round < 60; ++round) {
    const auto type = round % 2 == 0 ? at::kBFloat16 : at::kHalf;
    const test::NormCase c = test::draw_norm(draw, type);
    const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
    const auto n = c.x.size(1);
    const at::Tensor x = leaf(c.x), w = leaf(c.weight.defined() ? c.weight : at::ones({n}));
    const at::Tensor b = leaf(c.bias.defined() ? c.bias : at::zeros({n}));
    const at::Tensor expected = c.centers ? at::layer_norm(x, {n}, w, b, 1e-5) : at::rms_norm(x, {n}, w, 1e-5) + b;
    const test::NormResults got = test::results_of(c);
    EXPECT_TRUE(at::allclose(got.y.to(at::kDouble), expected.detach(), unit_of(type), 1e-5)) << round;
    if (c.x.size(0) == 0) continue;
    expected.backward(c.grad.to(at::kDouble));
    // A row of one or two elements has gradients that cancel: their errors are relative to the operands.
    const double size = 1 + (x.grad().abs().max().item<double>() + got.rstd.max().item<double>()) * 1e-5;
    EXPECT_TRUE(at::allclose(got.to_x.to(at::kDouble), x.grad(), unit_of(type), 1e-4 * size)) << round;
    const at::Tensor sums = got.sums.to(at::kDouble);
    EXPECT_TRUE(at::allclose(sums[0], w.grad(), 1e-5, 1e-3)) << round;
    EXPECT_TRUE(at::allclose(sums[1], b.grad(), 1e-5, 1e-3)) << round;
  }
}

TEST(MixedLayerNorm, EqualsFloat64OnEveryLayout) {
  const test::GpuKernelsOnCpu kernels;
  for (const auto& shape : test::mesh_shapes()) {
    test::on_mesh(shape, [&](const DeviceMesh& mesh) {
      clear_cache();
      test::Draw draw(52);
      for (int round = 0; round < 12; ++round) {
        const test::Shape sizes{draw.integer(1, 4), draw.integer(1, 5), draw.integer(4, 9)};
        const at::Tensor x = draw.normal(sizes, at::kBFloat16), up = draw.normal(sizes, at::kBFloat16);
        const at::Tensor w = draw.normal({sizes[2]}, at::kFloat), b = draw.normal({sizes[2]}, at::kFloat);
        const auto exact = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
        const std::vector<at::Tensor> regular{exact(x), exact(w), exact(b)};
        const at::Tensor expected = at::layer_norm(regular[0], {sizes[2]}, regular[1], regular[2], 1e-3);
        expected.backward(up.to(at::kDouble));
        const Placements where = draw.placements(mesh, 3, false), replicated(shape.size());
        const auto leaf = [&](const at::Tensor& t, const Placements& p) {
          return distribute_tensor(t, mesh, p).requires_grad_();
        };
        const std::vector<at::Tensor> leaves{leaf(x, where), leaf(w, replicated), leaf(b, replicated)};
        const at::Tensor y = nn::layer_norm(leaves[0], sizes[2], leaves[1], leaves[2], 1e-3);
        EXPECT_EQ(y.scalar_type(), at::kBFloat16);
        const std::string what = to_string(where);
        test::expect_close(DTensor(y.detach()).full_tensor().to(at::kDouble), expected.detach(), what, 6e-2);
        y.backward(distribute_tensor(up, mesh, replicated));
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(leaves[i].grad().scalar_type(), leaves[i].scalar_type());
          const auto found = DTensor(leaves[i].grad()).full_tensor().to(at::kDouble);
          const double size = 1 + regular[i].grad().abs().max().item<double>();
          test::expect_close(found, regular[i].grad(), c10::str("gradient ", i, " ", what),
                             (i == 0 ? 2e-2 : 1e-4) * size);
        }
      }
    });
  }
}

// The input takes 128 KB in bfloat16: the result and the gradient take as much each, and a float copy would take 256
// KB.
TEST(MixedLayerNorm, MakesNoFloatCopyOfTheRows) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const test::GpuKernelsOnCpu kernels;
    const auto leaf = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}).requires_grad_(); };
    const at::Tensor x = leaf(at::randn({64, 1024}).to(at::kBFloat16)), w = leaf(at::randn({1024})),
                     b = leaf(at::randn({1024}));
    const at::Tensor up = distribute_tensor(at::randn({64, 1024}).to(at::kBFloat16), mesh, {Replicate()});
    const MemoryTimeline memory;
    nn::layer_norm(x, 1024, w, b, 1e-5).backward(up);
    EXPECT_LT(memory.peak().bytes, 2 * 131'072 + 60'000);
  });
}

}  // namespace
}  // namespace dtensor
