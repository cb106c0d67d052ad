// Random fills by CUDA kernels give the bits of the CPU on any layout.
#include "dtensor/dtensor.h"
#include "gpu/gpu.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Fill = std::function<at::Tensor(const DeviceMesh&, const Placements&)>;

at::Tensor on_one_cpu(const Fill& fill) {
  at::Tensor full;
  run_local(1, [&](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {1});
    manual_seed(mesh, 4);
    full = DTensor(fill(mesh, {Replicate()})).full_tensor();
  });
  return full;
}

void expect_same(const Fill& fill, double tolerance, const std::string& what) {
  const at::Tensor expected = on_one_cpu(fill);
  for (const Placements& where : {Placements{Replicate(), Replicate()}, Placements{Shard(0), Shard(1)},
                                  Placements{Shard(1), Shard(1)}, Placements{Shard(1), Replicate()}}) {
    run_local(4, [&](const Communicator& world) {
      const auto mesh = init_device_mesh(world, at::kCUDA, {2, 2});
      manual_seed(mesh, 4);
      const at::Tensor drawn = fill(mesh, where);
      EXPECT_TRUE(DTensor(drawn).to_local().is_cuda());
      const at::Tensor full = DTensor(drawn).full_tensor().cpu();
      EXPECT_TRUE(tolerance == 0 ? at::equal(full, expected) : at::allclose(full, expected, tolerance, tolerance))
          << what << " " << (full.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
    });
  }
}

using GpuRandom = Gpu;

TEST_F(GpuRandom, UniformAndNormalEqualTheCpu) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const bool wide = dtype == at::kDouble;
    expect_same(
        [&](const auto& mesh, const auto& where) {
          return rand({37, 29}, mesh, where, dtype);
        },
        0, c10::str("rand ", dtype));
    expect_same(
        [&](const auto& mesh, const auto& where) {
          return randn({37, 29}, mesh, where, dtype);
        },
        wide ? 1e-12 : 0, c10::str("randn ", dtype));
  }
}

TEST_F(GpuRandom, DistributionsEqualTheCpu) {
  const auto filled = [](auto&& draw) {
    return [draw](const DeviceMesh& mesh, const Placements& where) {
      const auto t = zeros({37, 29}, mesh, where);
      draw(t);
      return at::Tensor(t);
    };
  };
  expect_same(filled([](const at::Tensor& t) { t.bernoulli_(0.3); }), 0, "bernoulli");
  expect_same(filled([](const at::Tensor& t) { t.random_(-5, 1000); }), 0, "random");
  expect_same(filled([](const at::Tensor& t) { t.uniform_(-2, 7); }), 0, "uniform");
  expect_same(filled([](const at::Tensor& t) { t.normal_(1, 3); }), 0, "normal");
  expect_same(filled([](const at::Tensor& t) { t.exponential_(2); }), 1e-6, "exponential");
  expect_same(filled([](const at::Tensor& t) { t.geometric_(0.2); }), 1e-6, "geometric");
  expect_same(filled([](const at::Tensor& t) { t.cauchy_(0, 1); }), 1e-5, "cauchy");
  expect_same(filled([](const at::Tensor& t) { t.log_normal_(0, 0.5); }), 1e-6, "log-normal");
}

}  // namespace
}  // namespace dtensor::test
