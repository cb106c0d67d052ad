// Operators whose GPU kernels return other results than those of the CPU, or on which thread ranks that share a GPU
// must agree.
#include "dtensor/dtensor.h"
#include "gpu/gpu.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using GpuOperators = Gpu;

void on_two(const std::function<void(const DeviceMesh&)>& body) {
  run_local(2, [&](const Communicator& world) { body(init_device_mesh(world, at::kCUDA, {2})); });
}

at::Tensor host_values(const at::Tensor& t) { return DTensor(t.detach()).full_tensor().cpu(); }

// On a GPU its buffer for backward has no elements.
TEST_F(GpuOperators, LogSigmoidForwardAndBackward) {
  const at::Tensor x = Draw(3).normal({6, 5});
  const at::Tensor regular = x.clone().requires_grad_();
  at::log_sigmoid(regular).square().sum().backward();
  for (const Placement& where : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    on_two([&](const DeviceMesh& mesh) {
      const at::Tensor ours = distribute_tensor(x, mesh, {where}).requires_grad_();
      const at::Tensor y = at::log_sigmoid(ours);
      EXPECT_TRUE(at::allclose(host_values(y), at::log_sigmoid(x)));
      y.square().sum().backward();
      EXPECT_TRUE(at::allclose(host_values(ours.grad()), regular.grad()));
    });
  }
}

// Half types with parameters of the same type.
TEST_F(GpuOperators, GroupNormStatisticsHaveTheParametersDtype) {
  const at::Tensor x = Draw(3).normal({4, 6, 5}).to(at::kBFloat16), weight = at::ones({6}, at::kBFloat16);
  const auto regular = at::native_group_norm(x.cuda(), weight.cuda(), weight.cuda(), 4, 6, 5, 3, 1e-5);
  on_two([&](const DeviceMesh& mesh) {
    const at::Tensor scale = distribute_tensor(weight, mesh, {Replicate()});
    const auto ours = at::native_group_norm(distribute_tensor(x, mesh, {Shard(0)}), scale, scale, 4, 6, 5, 3, 1e-5);
    EXPECT_EQ(std::get<1>(ours).scalar_type(), std::get<1>(regular).scalar_type());
    EXPECT_TRUE(at::allclose(host_values(std::get<1>(ours)), std::get<1>(regular).cpu()));
  });
}

// Each rank uses a generator derived from the mesh's: equal on all ranks, different for each call.
TEST_F(GpuOperators, SequentialDrawsAreEqualOnAllRanks) {
  on_two([](const DeviceMesh& mesh) {
    manual_seed(mesh, 5);
    const at::Tensor weights = distribute_tensor(at::ones({4, 100}), mesh, {Shard(0)});
    const at::Tensor first = at::multinomial(weights, 20, true), second = at::multinomial(weights, 20, true);
    const at::Tensor mine = DTensor(first).full_tensor(), other = DTensor(second).full_tensor();
    EXPECT_FALSE(at::equal(mine, other));
    std::vector<at::Tensor> all(2);
    for (auto& t : all) t = at::empty_like(mine);
    mesh.world().all_gather(all, mine).wait();
    EXPECT_TRUE(at::equal(all[0], all[1]));
    manual_seed(mesh, 5);
    EXPECT_TRUE(at::equal(DTensor(at::multinomial(weights, 20, true)).full_tensor(), mine));
  });
}

// Uneven calls are validated with zeros and ones, which are invalid pivots. The GPU kernel's assertion would make the
// device unusable for the process.
TEST_F(GpuOperators, UnevenCallsAreValidatedOnTheHost) {
  const at::Tensor a = Draw(3).normal({3, 5, 5});
  const auto [lu, pivots] = at::linalg_lu_factor(a.cuda());
  const auto regular = at::lu_unpack(lu, pivots);
  on_two([&, lu = lu, pivots = pivots](const DeviceMesh& mesh) {
    const auto ours =
        at::lu_unpack(distribute_tensor(lu, mesh, {Shard(0)}), distribute_tensor(pivots, mesh, {Shard(0)}));
    EXPECT_TRUE(at::allclose(host_values(std::get<2>(ours)), std::get<2>(regular).cpu()));
  });
}

// ATen orders its attention kernels at the first query, which may come from two ranks at once.
TEST_F(GpuOperators, RanksChooseTheSameAttentionKernel) {
  on_two([](const DeviceMesh& mesh) {
    const Checked checked(Checks::calls);
    const at::Tensor q = distribute_tensor(Draw(3).normal({2, 4, 64, 16}).to(at::kBFloat16), mesh, {Shard(0)});
    const at::Tensor y = at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
    EXPECT_FALSE(host_values(y).isnan().any().item<bool>());
  });
}

}  // namespace
}  // namespace dtensor::test
