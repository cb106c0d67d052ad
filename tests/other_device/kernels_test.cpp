// Requirements of device kernels: equal dtypes, and addresses aligned to 16 bytes.
#include <gtest/gtest.h>

#include "dtensor/nn.h"
#include "other_device/step.h"

namespace dtensor::test {
namespace {

// With bfloat16 inputs and float weights of mixed precision, the device kernel gets one dtype.
TEST(OtherDevice, LayerNormRunsInTheDtypeOfTheWeight) {
  const at::Tensor x = Draw(3).normal({6, 32}).to(at::kBFloat16), weight = Draw(4).normal({32}).to(at::kFloat);
  const at::Tensor expected = at::layer_norm(x.to(at::kFloat), {32}, weight, {}, 1e-5).to(at::kBFloat16);
  on_device_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor split = distribute_tensor(x, mesh, {Shard(0)});
    const at::Tensor scale = distribute_tensor(weight, mesh, {Replicate()}).requires_grad_();
    const at::Tensor y = nn::layer_norm(split, 32, scale, {}, 1e-5);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(host_value(y), expected));
    y.sum().backward();
    EXPECT_EQ(scale.grad().scalar_type(), at::kFloat);
  });
}

// The sums of a list share one buffer.
TEST(OtherDevice, SumsOfAListAreAlignedTo16Bytes) {
  on_device_mesh({2}, [](const DeviceMesh& mesh) {
    std::vector<DTensor> parts;
    std::vector<at::Tensor> values;
    for (const std::int64_t size : {1, 7, 3, 0, 4, 1}) {
      values.push_back(at::arange(size, at::kFloat) + static_cast<double>(size));
      parts.push_back(DTensor::from_local(values.back().to(fake::kDevice), mesh, {Partial()}));
    }
    const auto sums = redistribute(parts, std::vector<Placements>(parts.size(), {Replicate()}));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_TRUE(at::equal(host_value(sums[i]), values[i] * 2));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(sums[i].to_local().const_data_ptr()) % 16, 0u) << i;
    }
  });
}

}  // namespace
}  // namespace dtensor::test
