// The CUDA kernels of cross entropy: the bits of the CPU in float, and the results of float64 in losses and gradients.
#include <ATen/ATen.h>

#include "gpu/gpu.h"
#include "support/loss_rows.h"

namespace dtensor {
namespace {

using GpuLoss = test::Gpu;

// The same rows on the GPU. Every second one has aligned rows, which the kernels load 8 elements at a time.
loss_rows::Rows on_gpu(const loss_rows::Rows& rows, bool aligned) {
  auto there = rows;
  const auto width = rows.values.size(1), stride = aligned ? (width + 7) / 8 * 8 : width;
  there.values = at::empty({rows.values.size(0), stride}, rows.values.options().device(at::kCUDA)).narrow(1, 0, width);
  there.values.copy_(rows.values);
  there.targets = rows.targets.cuda();
  if (rows.weight.defined()) there.weight = rows.weight.cuda();
  return there;
}

bool same(const at::Tensor& gpu, const at::Tensor& cpu) {
  if (cpu.scalar_type() == at::kDouble) return at::allclose(gpu.cpu(), cpu, 1e-12, 1e-12);
  return at::equal(gpu.cpu(), cpu);
}

TEST_F(GpuLoss, KernelsHaveTheBitsOfTheCpu) {
  test::Draw draw(41);
  for (int round = 0; round < 200; ++round) {
    constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
    const auto rows = test::draw_rows(draw, kTypes[round % 4]).rows;
    const auto there = on_gpu(rows, draw.coin());
    const auto [top, sums] = loss_rows::sums(rows);
    const auto [gpu_top, gpu_sums] = loss_rows::sums(there);
    EXPECT_TRUE(same(gpu_top, top)) << round;
    EXPECT_TRUE(same(gpu_sums, sums)) << round;
    EXPECT_TRUE(same(loss_rows::largest(there), top)) << round;
    const at::Tensor factors = draw.normal({loss_rows::kFactors, rows.values.size(0)}).to(sums.scalar_type()) + 5;
    const at::Tensor out = at::empty_like(rows.values);
    loss_rows::gradient(rows, factors, out);
    loss_rows::gradient(there, factors.cuda(), there.values);  // in place
    EXPECT_TRUE(same(there.values, out)) << round;
  }
}

TEST_F(GpuLoss, LinearCrossEntropyEqualsFloat64) {
  test::Draw draw(42);
  for (const std::int64_t classes : {50, 257, 50257}) {
    const at::Tensor h = draw.normal({64, 32}, at::kBFloat16), w = draw.normal({classes, 32}, at::kBFloat16) * 0.2;
    const at::Tensor targets = draw.integers({64}, classes);
    const auto leaf = [](const at::Tensor& t) { return t.clone().requires_grad_(); };
    const at::Tensor exact_h = leaf(h.to(at::kDouble)), exact_w = leaf(w.to(at::kDouble));
    const at::Tensor expected = at::cross_entropy_loss(at::linear(exact_h, exact_w), targets);
    expected.backward();
    for (const std::int64_t chunk : {0, 16}) {
      const at::Tensor hidden = leaf(h.cuda()), weight = leaf(w.cuda());
      const at::Tensor loss = linear_cross_entropy(hidden, weight, targets.cuda(), {}, chunk);
      loss.backward();
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-3) << classes;
      const auto near = [](const at::Tensor& gpu, const at::Tensor& exact) {
        const auto scale = exact.abs().max().item<double>();
        return at::allclose(gpu.cpu().to(at::kDouble), exact, 2e-2, scale * 1e-2);
      };
      EXPECT_TRUE(near(hidden.grad(), exact_h.grad())) << classes;
      EXPECT_TRUE(near(weight.grad(), exact_w.grad())) << classes;
    }
  }
}

}  // namespace
}  // namespace dtensor
