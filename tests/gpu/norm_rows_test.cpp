// The CUDA kernels of layer norm and RMS norm of half-precision input with float parameters have the bits of the CPU.
#include <ATen/ATen.h>

#include "gpu/gpu.h"
#include "support/norm_rows.h"

namespace dtensor {
namespace {

using GpuNorm = test::Gpu;

TEST_F(GpuNorm, KernelsHaveTheBitsOfTheCpu) {
  test::Draw draw(53);
  for (int round = 0; round < 100; ++round) {
    const test::NormCase c = test::draw_norm(draw, round % 2 == 0 ? at::kBFloat16 : at::kHalf);
    const auto up = [](const at::Tensor& t) { return t.defined() ? t.cuda() : t; };
    const test::NormResults cpu = test::results_of(c);
    const test::NormResults gpu = test::results_of({up(c.x), up(c.weight), up(c.bias), up(c.grad), c.centers});
    ASSERT_TRUE(row_norm::has_kernels(gpu.y));
    const auto equal = [&](const at::Tensor& on_gpu, const at::Tensor& on_cpu, const char* what) {
      EXPECT_TRUE(at::equal(on_gpu.cpu(), on_cpu)) << what << " " << round;
    };
    equal(gpu.y, cpu.y, "result");
    if (c.centers) equal(gpu.mean, cpu.mean, "mean");
    equal(gpu.rstd, cpu.rstd, "rstd");
    equal(gpu.to_x, cpu.to_x, "input");
    equal(gpu.sums, cpu.sums, "parameters");
  }
}

}  // namespace
}  // namespace dtensor
