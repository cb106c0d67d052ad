// RMS norm of half-precision DTensors by the row kernels makes no float copies. tests/other_device checks the values.
#include "dtensor/debug.h"
#include "support/gpu_kernels.h"
#include "support/ranks.h"

namespace dtensor {
namespace {

// Input, result and gradient take 128 KB each in bfloat16; a float copy would take 256 KB.
TEST(RmsNormRows, MakesNoFloatCopyOfTheRows) {
  test::on_mesh({1}, [](const DeviceMesh& mesh) {
    const test::GpuKernelsOnCpu kernels;
    const auto leaf = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}).requires_grad_(); };
    const at::Tensor x = leaf(at::randn({64, 1024}).to(at::kBFloat16)), w = leaf(at::randn({1024}));
    const at::Tensor up = distribute_tensor(at::randn({64, 1024}).to(at::kBFloat16), mesh, {Replicate()});
    const MemoryTimeline memory;
    at::rms_norm(x, {1024}, w, 1e-5).backward(up);
    EXPECT_LT(memory.peak().bytes, 2 * 131'072 + 60'000);
  });
}

}  // namespace
}  // namespace dtensor
