// Spatial operators receive halos, never a full image.
#include <torch/torch.h>

#include "spatial/operators.h"

namespace dtensor::test {
namespace {

constexpr int kMaxPool = 5, kFourier = 14;

std::int64_t bytes_of(const at::Tensor& t) { return t.numel() * 8; }

// The value, the gradients and (unless `once`) the second derivatives of an operator on sharded rows.
void differentiate(const SpatialOperator& op, const Tensors& leaves, const at::Tensor& factors, bool once) {
  const auto first = torch::autograd::grad({(op.run(leaves) * factors).sum()}, leaves, {}, true, true);
  if (once) return;
  at::Tensor sum = first[0].square().sum();
  for (std::size_t i = 1; i < first.size(); ++i) sum = sum + first[i].square().sum();
  auto all = leaves;
  all.push_back(factors);
  torch::autograd::grad({sum}, all, {}, std::nullopt, false, /*allow_unused=*/true);
}

// A gather of rows over 4 ranks receives three quarters of the image. The second derivative of max_pool gathers.
TEST(SpatialBytes, NoOperatorGathersTheImage) {
  for (int kind = 0; kind < kSpatialKinds; ++kind) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      on_mesh({4}, [&](const DeviceMesh& mesh) {
        Draw draw(seed);
        const auto op = spatial_operator(draw, kind, 32, 40);
        Tensors values, placed;
        for (const Shape& sizes : op.sizes) values.push_back(draw.normal(sizes));
        for (std::size_t i = 0; i < values.size(); ++i) {
          const Placement where = i == 0 ? Placement(Shard(2)) : Placement(Replicate());
          placed.push_back(at::Tensor(distribute_tensor(values[i], mesh, {where})).requires_grad_());
        }
        const auto y = op.run(values);
        const at::Tensor factors = distribute_tensor(draw.normal(y.sizes().vec()), mesh, {Shard(2)});
        const auto image = std::max(bytes_of(values[0]), bytes_of(y)) * (kind == kFourier ? 2 : 1);  // complex
        const EventListener listener(
            [&](const Event& e) {
              EXPECT_LE(e.bytes, std::max<std::int64_t>(image * 2 / 5, 2000))
                  << op.text << ": " << e.name << " of an image of " << image << " bytes";
            },
            {Event::Kind::collective});
        differentiate(op, placed, at::Tensor(factors).requires_grad_(), kind == kMaxPool);
      });
    }
  }
}

// Bytes of a convolution on a mesh of two dimensions: each rank receives the rows and columns beside its part, with the
// corners, once in forward and once in backward.
TEST(SpatialBytes, ConvolutionReceivesOneHaloEachWay) {
  constexpr std::int64_t kSize = 32, kChannels = 3, kReach = 2;
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    Draw draw(1);
    const at::Tensor x =
        at::Tensor(distribute_tensor(draw.normal({1, kChannels, kSize, kSize}), mesh, {Shard(2), Shard(3)}))
            .requires_grad_();
    const at::Tensor w = distribute_tensor(draw.normal({kChannels, kChannels, 5, 5}), mesh, {Replicate(), Replicate()});
    std::int64_t bytes = 0;
    const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
    const at::Tensor y = at::conv2d(x, w, {}, 1, kReach);
    constexpr std::int64_t kHalf = kSize / 2, kHalo = 8 * kChannels * (kReach * kHalf + (kHalf + kReach) * kReach);
    EXPECT_EQ(bytes, kHalo);
    y.backward(y.detach());
    EXPECT_EQ(bytes, 2 * kHalo);
  });
}

}  // namespace
}  // namespace dtensor::test
