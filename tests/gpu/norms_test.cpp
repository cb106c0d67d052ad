// Norm layers whose GPU kernels accept or return other tensors than those of the CPU.
#include "dtensor/dtensor.h"
#include "gpu/gpu.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using GpuNorms = Gpu;

// With mixed precision, inputs are bfloat16 while weights stay in float.
TEST_F(GpuNorms, LayerNormAcceptsBFloat16Inputs) {
  const at::Tensor x = Draw(3).normal({6, 32}).to(at::kBFloat16), weight = Draw(4).normal({32}).to(at::kFloat);
  const at::Tensor expected = at::layer_norm(x, {32}, weight, {}, 1e-5);
  run_local(2, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCUDA, {2});
    const at::Tensor split = distribute_tensor(x, mesh, {Shard(0)}),
                     scale = distribute_tensor(weight, mesh, {Replicate()});
    const at::Tensor y = nn::layer_norm(split, 32, scale, {}, 1e-5);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::allclose(DTensor(y).full_tensor().cpu(), expected, 1e-2, 1e-2));
  });
}

TEST_F(GpuNorms, RmsNormOfBFloat16EqualsFloat64) {
  const at::Tensor x = Draw(3).normal({6, 32}).to(at::kBFloat16), weight = Draw(4).normal({32}).to(at::kFloat);
  const at::Tensor exact = x.to(at::kDouble).requires_grad_();
  const at::Tensor expected = at::rms_norm(exact, {32}, weight.to(at::kDouble), 1e-5);
  expected.sum().backward();
  run_local(2, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCUDA, {2});
    const at::Tensor split = distribute_tensor(x, mesh, {Shard(0)}).requires_grad_();
    const at::Tensor y = at::rms_norm(split, {32}, distribute_tensor(weight, mesh, {Replicate()}), 1e-5);
    y.sum().backward();
    const auto host = [](const at::Tensor& t) { return DTensor(t.detach()).full_tensor().cpu().to(at::kDouble); };
    EXPECT_TRUE(at::allclose(host(y), expected.detach(), 2e-2, 2e-2));
    EXPECT_TRUE(at::allclose(host(split.grad()), exact.grad(), 2e-2, 2e-2));
  });
}

// On a GPU the saved statistics have elements in evaluation, unlike on the CPU.
TEST_F(GpuNorms, BatchNormInEvaluation) {
  const auto there = [](const at::Tensor& t) { return t.cuda(); };
  const at::Tensor x = Draw(3).normal({4, 6, 5}).to(at::kFloat), mean = Draw(4).normal({6}).to(at::kFloat);
  const at::Tensor variance = Draw(5).normal({6}).to(at::kFloat).square() + 1;
  const auto expected = at::native_batch_norm(there(x), {}, {}, there(mean), there(variance), false, 0.1, 1e-5);
  for (const Placement& where :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Shard(2))}) {
    run_local(2, [&](const Communicator& world) {
      const auto mesh = init_device_mesh(world, at::kCUDA, {2});
      const auto replicated = [&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Replicate()}); };
      const auto got = at::native_batch_norm(distribute_tensor(x, mesh, {where}), {}, {}, replicated(mean),
                                             replicated(variance), false, 0.1, 1e-5);
      const auto expect_same = [&](const at::Tensor& ours, const at::Tensor& regular) {
        EXPECT_EQ(ours.sizes(), regular.sizes());
        EXPECT_TRUE(at::allclose(DTensor(ours).full_tensor(), regular, 1e-5, 1e-5)) << where.str();
      };
      expect_same(std::get<0>(got), std::get<0>(expected));
      expect_same(std::get<1>(got), std::get<1>(expected));
      expect_same(std::get<2>(got), std::get<2>(expected));
    });
  }
}

}  // namespace
}  // namespace dtensor::test
