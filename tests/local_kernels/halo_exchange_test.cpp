// Convolutions and paddings along split dimensions equal one device, with halo exchange for rows of neighbors.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "dtensor/dtensor.h"
#include "local_kernels/halo_rows.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(const at::Tensor& t) { return t.detach().clone().requires_grad_(); }

// Returns the result and the gradients of its weighted sum.
Tensors run(const std::function<at::Tensor(const Tensors&)>& op, const Tensors& leaves, const at::Tensor& factors,
            const std::function<at::Tensor(const at::Tensor&)>& place) {
  const at::Tensor y = op(leaves);
  (y * place(factors)).sum().backward();
  Tensors all{y.detach()};
  for (const auto& x : leaves) all.push_back(x.grad());
  return all;
}

struct Setup {
  std::int64_t positions, batch, in, out, groups;
  Shape sizes, kernel, stride, padding, dilation, extra;  // extra: output_padding
  bool bias, transposed;
};

std::vector<std::int64_t> any(std::int64_t count, std::int64_t low, std::int64_t high) {
  return *rc::gen::container<Shape>(static_cast<std::size_t>(count), rc::gen::inRange(low, high + 1));
}

Setup any_setup() {
  Setup s;
  s.positions = *rc::gen::inRange<std::int64_t>(1, 4);
  s.batch = *rc::gen::inRange<std::int64_t>(1, 3);
  s.groups = *rc::gen::inRange<std::int64_t>(1, 3);
  s.in = s.groups * *rc::gen::inRange<std::int64_t>(1, 3);
  s.out = s.groups * *rc::gen::inRange<std::int64_t>(1, 3);
  s.kernel = any(s.positions, 1, 3);
  s.stride = any(s.positions, 1, 2);
  s.padding = any(s.positions, 0, 3);
  s.dilation = any(s.positions, 1, 2);
  s.sizes = any(s.positions, 1, s.positions == 1 ? 14 : 7);
  for (std::size_t d = 0; d < s.sizes.size(); ++d) {  // sizes of at least one window
    s.sizes[d] = std::max(s.sizes[d], s.dilation[d] * (s.kernel[d] - 1) + 1 - 2 * s.padding[d]);
  }
  s.bias = *rc::gen::arbitrary<bool>();
  s.transposed = *rc::gen::arbitrary<bool>();
  s.extra = Shape(s.kernel.size(), 0);
  for (std::size_t d = 0; s.transposed && d < s.sizes.size(); ++d) {
    s.extra[d] = *rc::gen::inRange<std::int64_t>(0, std::max(s.stride[d], s.dilation[d]));
    const auto most = (s.sizes[d] - 1) * s.stride[d] + s.dilation[d] * (s.kernel[d] - 1) + s.extra[d];
    s.padding[d] = std::min(s.padding[d], most / 2);  // at least one row remains
  }
  return s;
}

std::string text_of(const Setup& s) {
  return c10::str("sizes ", at::IntArrayRef(s.sizes), " kernel ", at::IntArrayRef(s.kernel), " stride ",
                  at::IntArrayRef(s.stride), " padding ", at::IntArrayRef(s.padding), " dilation ",
                  at::IntArrayRef(s.dilation), " groups ", s.groups,
                  s.transposed ? c10::str(" transposed, ", at::IntArrayRef(s.extra)) : "");
}

at::Tensor convolve(const Setup& s, const Tensors& leaves) {
  return at::convolution(leaves[0], leaves[1], s.bias ? std::optional(leaves[2]) : std::nullopt, s.stride, s.padding,
                         s.dilation, s.transposed, s.extra, s.groups);
}

RC_GTEST_PROP(Windows, ConvolutionsOverShardedSpatialDimsEqualOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(std::vector<Shape>{{2}, {3}, {4}, {2, 2}});
  const Setup s = any_setup();
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 10000);
  Shape input{s.batch, s.in}, filter = s.transposed ? Shape{s.in, s.out / s.groups} : Shape{s.out, s.in / s.groups};
  input.insert(input.end(), s.sizes.begin(), s.sizes.end());
  filter.insert(filter.end(), s.kernel.begin(), s.kernel.end());
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    Tensors values{draw.normal(input), draw.normal(filter)};
    if (s.bias) values.push_back(draw.normal({s.out}));
    Placements placements;
    for (std::size_t a = 0; a < shape.size(); ++a) {
      const auto dim = 2 + draw.integer(0, s.positions - 1);
      placements.push_back(draw.integer(0, 4) == 0 ? Shard(0) : draw.coin() ? Shard(dim) : ZigzagShard(dim));
    }
    Tensors regular, placed;
    for (std::size_t i = 0; i < values.size(); ++i) {
      regular.push_back(leaf(values[i]));
      const auto where = i == 0 ? placements : Placements(shape.size());
      placed.push_back(at::Tensor(distribute_tensor(values[i], mesh, where)).requires_grad_());
    }
    const auto op = [&](const Tensors& leaves) { return convolve(s, leaves); };
    const at::Tensor factors = draw.normal(convolve(s, values).sizes().vec());
    const auto expected = run(op, regular, factors, [](const at::Tensor& t) { return t; });
    const auto got = run(op, placed, factors,
                         [&](const at::Tensor& t) { return distribute_tensor(t, mesh, Placements(shape.size())); });
    RC_ASSERT(DTensor(got[0]).placements() == placements);
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], expected[i], text_of(s) + " on " + to_string(placements) + ", tensor " + std::to_string(i));
    }
  });
}

RC_GTEST_PROP(Windows, PaddingsAlongShardedDimsEqualOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(std::vector<Shape>{{2}, {3}, {4}, {2, 2}});
  const auto sizes = *rc::gen::container<Shape>(3, rc::gen::inRange<std::int64_t>(0, 9));
  auto amounts = *rc::gen::container<Shape>(4, rc::gen::inRange<std::int64_t>(-3, 6));
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 10000);
  for (std::size_t i = 0; i < 2; ++i) {  // sizes after cropping are not negative
    const auto left = sizes[2 - i] + amounts[2 * i] + amounts[2 * i + 1];
    if (left < 0 || sizes[2 - i] + std::min<std::int64_t>(amounts[2 * i], 0) < 0)
      amounts[2 * i] = amounts[2 * i + 1] = 1;
    if (sizes[2 - i] + std::min<std::int64_t>(amounts[2 * i + 1], 0) < 0) amounts[2 * i + 1] = 0;
    if (sizes[2 - i] + amounts[2 * i] + amounts[2 * i + 1] < 0) amounts[2 * i] = 0;
  }
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const at::Tensor x = draw.normal(sizes);
    Placements placements;
    for (std::size_t a = 0; a < shape.size(); ++a) {
      const auto dim = draw.integer(0, 2);
      placements.push_back(draw.coin() ? Shard(dim) : ZigzagShard(dim));
    }
    const auto op = [&](const Tensors& leaves) { return at::constant_pad_nd(leaves[0], amounts, 2.5); };
    const at::Tensor factors = draw.normal(op({x}).sizes().vec());
    const auto expected = run(op, {leaf(x)}, factors, [](const at::Tensor& t) { return t; });
    const at::Tensor mine = at::Tensor(distribute_tensor(x, mesh, placements)).requires_grad_();
    const auto got = run(op, {mine}, factors,
                         [&](const at::Tensor& t) { return distribute_tensor(t, mesh, Placements(shape.size())); });
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], expected[i], to_string(placements) + c10::str(at::IntArrayRef(amounts)));
    }
  });
}

RC_GTEST_PROP(Windows, FlipsOfShardedDimsEqualOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(std::vector<Shape>{{2}, {3}, {4}, {2, 2}});
  const auto sizes = *rc::gen::container<Shape>(3, rc::gen::inRange<std::int64_t>(0, 9));
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 10000);
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const at::Tensor x = draw.normal(sizes);
    const std::vector<std::int64_t> dims =
        draw.coin() ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{0, -1};
    const Placements placements = draw.placements_of(mesh, x.sizes(), false);
    const auto op = [&](const Tensors& leaves) { return leaves[0].flip(dims); };
    const at::Tensor factors = draw.normal(sizes);
    const auto expected = run(op, {leaf(x)}, factors, [](const at::Tensor& t) { return t; });
    const at::Tensor mine = at::Tensor(distribute_tensor(x, mesh, placements)).requires_grad_();
    const auto got = run(op, {mine}, factors,
                         [&](const at::Tensor& t) { return distribute_tensor(t, mesh, Placements(shape.size())); });
    for (std::size_t i = 0; i < got.size(); ++i) expect_close(got[i], expected[i], to_string(placements));
    if (x.numel() > 0) RC_ASSERT(DTensor(got[0]).placements() == placements);
  });
}

// A convolution with output as long as its input receives (k - 1) / 2 rows of each neighbor, once.
TEST(Windows, NeighborsExchangeOnlyHaloRows) {
  constexpr std::int64_t kChannels = 3, kRanks = 4, kLength = 32, kReach = 2;
  on_mesh({kRanks}, [&](const DeviceMesh& mesh) {
    Draw draw(1);
    const auto rank = mesh.communicator().rank();
    const at::Tensor x = distribute_tensor(draw.normal({1, kChannels, kLength}), mesh, {Shard(2)});
    const at::Tensor w = distribute_tensor(draw.normal({kChannels, 1, 2 * kReach + 1}), mesh, {Replicate()});
    const at::Tensor input = x.requires_grad_();
    at::Tensor y;
    const std::int64_t sides = rank == 0 || rank == kRanks - 1 ? 1 : 2;
    EXPECT_EQ(
        rows_received(8 * kChannels, [&] { y = at::conv1d(input, w, {}, 1, at::IntArrayRef{kReach}, 1, kChannels); }),
        sides * kReach);
    EXPECT_EQ(DTensor(y).placements(), (Placements{Shard(2)}));
    const at::Tensor grad = distribute_tensor(at::ones({1, kChannels, kLength}, at::kDouble), mesh, {Shard(2)});
    // Backward exchanges as many rows of the gradient. The filter's gradient is not reduced, because it is no leaf.
    EXPECT_EQ(rows_received(8 * kChannels, [&] { y.backward(grad); }), sides * kReach);
  });
}

// A causal convolution as in models: k - 1 rows of padding, so that the output is as long as the input. The shards of
// the padded sequence are slightly shifted, so padding and convolution share the exchange.
TEST(Windows, CausalConvolutionMovesAtMostKernelMinusOneRows) {
  constexpr std::int64_t kChannels = 3, kKernel = 4;
  for (const std::int64_t length : {64, 640}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      Draw draw(1);
      const at::Tensor x = distribute_tensor(draw.normal({1, kChannels, length}), mesh, {Shard(2)});
      const at::Tensor w = distribute_tensor(draw.normal({kChannels, 1, kKernel}), mesh, {Replicate()});
      at::Tensor y;
      const auto rows = rows_received(8 * kChannels, [&] {
        y = at::conv1d(at::constant_pad_nd(x, {kKernel - 1, 0}), w, {}, 1, at::IntArrayRef{0}, 1, kChannels);
      });
      EXPECT_LE(rows, kKernel - 1);
      EXPECT_GT(rows, 0);
      EXPECT_EQ(DTensor(y).placements(), (Placements{Shard(2)}));
    });
  }
}

}  // namespace
}  // namespace dtensor::test
