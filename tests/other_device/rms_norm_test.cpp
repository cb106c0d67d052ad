// RMS norm of half-precision DTensors on a device runs the row kernels: values and gradients against float64.
#include <torch/csrc/autograd/autograd.h>

#include "other_device/step.h"
#include "support/norm_rows.h"

namespace dtensor::test {
namespace {

struct CountedKernels {
  CountedKernels() { fake::start(); }
  CountedNormKernels kernels{c10::DispatchKey::PrivateUse1};
};

TEST(OtherDevice, RmsNormEqualsFloat64OnEveryLayout) {
  const CountedKernels kernels;
  for (const Shape& shape : {Shape{1}, Shape{2}, Shape{3}, Shape{2, 2}}) {
    on_device_mesh(shape, [&](const DeviceMesh& mesh) {
      Draw draw(62);
      for (int round = 0; round < 12; ++round) {
        const Shape sizes{draw.integer(1, 4), draw.integer(1, 5), draw.integer(4, 9)};
        const auto half = draw.coin() ? at::kBFloat16 : at::kHalf;
        const at::Tensor x = draw.normal(sizes, half), up = draw.normal(sizes, half);
        const at::Tensor w = draw.normal({sizes[2]}, draw.coin() ? at::kFloat : half);
        const auto exact = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
        const std::vector<at::Tensor> regular{exact(x), exact(w)};
        const at::Tensor expected = at::rms_norm(regular[0], {sizes[2]}, regular[1], 1e-3);
        expected.backward(up.to(at::kDouble));
        const Placements where = draw.placements(mesh, 3, false), replicated(shape.size());
        const auto leaf = [&](const at::Tensor& t, const Placements& p) {
          return distribute_tensor(t, mesh, p).requires_grad_();
        };
        const std::vector<at::Tensor> leaves{leaf(x, where), leaf(w, replicated)};
        const at::Tensor y = at::rms_norm(leaves[0], {sizes[2]}, leaves[1], 1e-3);
        EXPECT_EQ(y.scalar_type(), half);
        const std::string what = to_string(where);
        expect_close(host_value(y).to(at::kDouble), expected.detach(), what, 6e-2);
        y.backward(distribute_tensor(up, mesh, replicated));
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(leaves[i].grad().scalar_type(), leaves[i].scalar_type());
          const double size = 1 + regular[i].grad().abs().max().item<double>();
          expect_close(host_value(leaves[i].grad()).to(at::kDouble), regular[i].grad(),
                       c10::str("gradient ", i, " ", what), 2e-2 * size);
        }
      }
    });
  }
  EXPECT_GT(CountedNormKernels::forward_calls, 0);
  EXPECT_GT(CountedNormKernels::backward_calls, 0);
}

TEST(OtherDevice, RmsNormSecondDerivativesEqualFloat64) {
  const CountedKernels kernels;
  on_device_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(63);
    const at::Tensor x = draw.normal({4, 6}, at::kBFloat16), w = draw.normal({6}, at::kFloat);
    const auto second = [](const at::Tensor& a, const at::Tensor& b) {
      const auto first = torch::autograd::grad({at::rms_norm(a, {6}, b, 1e-3).square().sum()}, {a}, {}, true, true);
      return torch::autograd::grad({first[0].to(at::kFloat).square().sum()}, {a})[0];
    };
    const at::Tensor expected = second(x.to(at::kDouble).requires_grad_(), w.to(at::kDouble));
    const at::Tensor found =
        second(distribute_tensor(x, mesh, {Shard(0)}).requires_grad_(), distribute_tensor(w, mesh, {Replicate()}));
    const double size = 1 + expected.abs().max().item<double>();
    expect_close(host_value(found).to(at::kDouble), expected, "second", 5e-2 * size);
  });
}

}  // namespace
}  // namespace dtensor::test
