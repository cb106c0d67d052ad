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
    const auto [saved, bias, grad] = test::draw_norm(draw, round % 2 == 0 ? at::kBFloat16 : at::kHalf);
    const auto up = [](const at::Tensor& t) { return t.defined() ? t.cuda() : t; };
    const row_norm::Saved there{up(saved.x), up(saved.mean), at::empty_like(saved.rstd, at::kCUDA), up(saved.weight)};
    const auto* kernels = row_norm::kernels_of(there.x);
    ASSERT_NE(kernels, nullptr);
    const auto& loops = row_norm::cpu_loops();
    const auto equal = [&](const at::Tensor& gpu, const at::Tensor& cpu, const char* what) {
      EXPECT_TRUE(at::equal(gpu.cpu(), cpu)) << what << " " << round;
    };
    equal(row_norm::forward(*kernels, there, up(bias), 1e-5), row_norm::forward(loops, saved, bias, 1e-5), "result");
    if (saved.x.size(0) == 0) continue;
    if (saved.mean.defined()) equal(there.mean, saved.mean, "mean");
    equal(there.rstd, saved.rstd, "rstd");
    equal(row_norm::input_gradient(*kernels, there, up(grad)), row_norm::input_gradient(loops, saved, grad), "input");
    equal(row_norm::parameter_gradients(*kernels, there, up(grad)), row_norm::parameter_gradients(loops, saved, grad),
          "parameters");
  }
}

}  // namespace
}  // namespace dtensor
