// Pooling and transposed convolutions along split dimensions equal one device. Also the rows that neighbors exchange.
#include <gtest/gtest.h>

#include <rapidcheck.h>

#include "dtensor/dtensor.h"
#include "local_kernels/halo_rows.h"
#include "support/draws.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(const at::Tensor& t) { return t.detach().clone().requires_grad_(); }

struct Setup {
  bool maximum, ceil, count_padding, batch;
  std::int64_t positions, divisor;  // divisor 0: none
  Shape sizes, kernel, stride, padding, dilation;
  at::ScalarType dtype;

  std::string str() const {
    return c10::str(maximum ? "max" : "avg", dtype, " sizes ", at::IntArrayRef(sizes), " kernel ",
                    at::IntArrayRef(kernel), " stride ", at::IntArrayRef(stride), " padding ", at::IntArrayRef(padding),
                    " dilation ", at::IntArrayRef(dilation), ceil ? " ceil" : "",
                    count_padding ? " counts padding" : "", " divisor ", divisor);
  }
};

Setup any_setup(Draw& draw) {
  Setup s{draw.coin(),
          draw.coin(),
          draw.coin(),
          draw.coin(),
          draw.integer(1, 3),
          draw.integer(0, 3),
          {},
          {},
          {},
          {},
          {},
          draw.integer(0, 3) > 0 ? at::kDouble : at::kBFloat16};
  if (s.positions == 1) s.divisor = 0;
  if (s.positions == 3) s.dtype = at::kDouble;  // ATen has no 3D average pooling of half types
  for (std::int64_t d = 0; d < s.positions; ++d) {
    s.kernel.push_back(draw.integer(1, 3));
    s.stride.push_back(draw.integer(1, 3));
    s.padding.push_back(draw.integer(0, s.kernel.back() / 2));
    s.dilation.push_back(s.maximum ? draw.integer(1, 2) : 1);
    // ATen writes out of bounds for windows without any element, which padding and dilation cause for small sizes.
    const auto span = s.dilation.back() * (s.kernel.back() - 1) + 1;
    s.sizes.push_back(std::max(draw.integer(1, s.positions == 1 ? 14 : 7), span));
  }
  return s;
}

Tensors pool(const Setup& s, const at::Tensor& x) {
  const auto divisor = s.divisor == 0 ? std::nullopt : std::optional(s.divisor);
  if (!s.maximum && s.positions == 1)
    return {at::avg_pool1d(x, s.kernel, s.stride, s.padding, s.ceil, s.count_padding)};
  if (!s.maximum && s.positions == 2)
    return {at::avg_pool2d(x, s.kernel, s.stride, s.padding, s.ceil, s.count_padding, divisor)};
  if (!s.maximum) return {at::avg_pool3d(x, s.kernel, s.stride, s.padding, s.ceil, s.count_padding, divisor)};
  const auto both = s.positions == 1 ? at::max_pool1d_with_indices(x, s.kernel, s.stride, s.padding, s.dilation, s.ceil)
                    : s.positions == 2
                        ? at::max_pool2d_with_indices(x, s.kernel, s.stride, s.padding, s.dilation, s.ceil)
                        : at::max_pool3d_with_indices(x, s.kernel, s.stride, s.padding, s.dilation, s.ceil);
  return {std::get<0>(both), std::get<1>(both)};
}

// Values with ties, and some that are -inf or NaN.
at::Tensor values_of(Draw& draw, const Shape& sizes, at::ScalarType dtype, bool maximum) {
  auto x = draw.integers(sizes, 5).to(at::kDouble) - 2 + 0.25 * draw.integers(sizes, 2).to(at::kDouble);
  if (maximum && draw.coin()) x = x.masked_fill(draw.integers(sizes, 3).eq(0), -INFINITY);
  if (maximum && draw.integer(0, 5) == 0) x = x.masked_fill(draw.integers(sizes, 8).eq(0), NAN);
  return x.to(dtype);
}

void check(const Setup& s, const Shape& shape, std::uint64_t seed) {
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    Shape sizes{2};
    if (s.batch) sizes.insert(sizes.begin(), 3);
    const auto first = std::ssize(sizes);
    sizes.insert(sizes.end(), s.sizes.begin(), s.sizes.end());
    const at::Tensor x = values_of(draw, sizes, s.dtype, s.maximum);
    Placements placements;
    for (std::size_t a = 0; a < shape.size(); ++a) {
      const auto dim = draw.integer(0, 5) == 0 ? 0 : first + draw.integer(0, s.positions - 1);
      placements.push_back(draw.coin() ? Shard(dim) : ZigzagShard(dim));
    }
    const at::Tensor regular = leaf(x), placed = at::Tensor(distribute_tensor(x, mesh, placements)).requires_grad_();
    const Tensors wanted = pool(s, regular), found = pool(s, placed);
    ASSERT_EQ(DTensor(found[0]).placements(), placements) << s.str();
    const double tolerance = s.dtype == at::kDouble ? 1e-12 : 2e-2;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      expect_close(found[i].detach(), wanted[i].detach(), s.str() + to_string(placements), tolerance);
    }
    const at::Tensor grad = draw.normal(wanted[0].sizes().vec(), s.dtype);
    wanted[0].backward(grad);
    found[0].backward(distribute_tensor(grad, mesh, placements));
    expect_close(placed.grad(), regular.grad(), s.str() + " gradient " + to_string(placements), tolerance);
  });
}

void random_pooling_equals_one_device() {
  const auto shape = *rc::gen::elementOf(std::vector<Shape>{{2}, {3}, {4}, {2, 2}});
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  Draw draw(seed);
  const Setup s = any_setup(draw);
  RC_LOG() << s.str();
  check(s, shape, seed);
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Pooling, ShardedSpatialDimsEqualOneDevice) {
  check_property("pooling over split spatial dimensions", random_pooling_equals_one_device, 100);
}

constexpr std::int64_t kChannels = 3, kRanks = 4, kRow = 8 * kChannels;

at::Tensor along(const DeviceMesh& mesh, std::int64_t length) {
  const auto x = at::arange(kChannels * length, at::kDouble).view({1, kChannels, length});
  return at::Tensor(distribute_tensor(x, mesh, {Shard(2)})).requires_grad_();
}

// A window of 2 r + 1 rows with stride 1 receives r rows of each neighbor; backward receives as many gradients and no
// row.
TEST(Pooling, NeighborsExchangeOnlyHaloRows) {
  constexpr std::int64_t kReach = 2;
  for (const bool maximum : {false, true}) {
    on_mesh({kRanks}, [&](const DeviceMesh& mesh) {
      const auto rank = mesh.communicator().rank();
      const std::int64_t sides = rank == 0 || rank == kRanks - 1 ? 1 : 2;
      const at::Tensor x = along(mesh, 32);
      at::Tensor y;
      const auto rows = rows_received(kRow, [&] {
        y = maximum ? std::get<0>(at::max_pool1d_with_indices(x, 2 * kReach + 1, 1, kReach))
                    : at::avg_pool1d(x, 2 * kReach + 1, 1, kReach);
      });
      EXPECT_EQ(rows, sides * kReach);
      const at::Tensor grad = distribute_tensor(at::ones({1, kChannels, 32}, at::kDouble), mesh, {Shard(2)});
      EXPECT_EQ(rows_received(kRow, [&] { y.backward(grad); }), sides * kReach);
    });
  }
}

// Windows side by side whose boundaries are those of the shards move nothing.
TEST(Pooling, WindowsWithinShardsMoveNothing) {
  on_mesh({kRanks}, [&](const DeviceMesh& mesh) {
    const at::Tensor x = along(mesh, 32);
    const at::Tensor grad = distribute_tensor(at::ones({1, kChannels, 8}, at::kDouble), mesh, {Shard(2)});
    const auto rows = rows_received(kRow, [&] {
      const at::Tensor y = at::avg_pool1d(x, 4) + std::get<0>(at::max_pool1d_with_indices(x, 4));
      y.backward(grad);
    });
    EXPECT_EQ(rows, 0);
  });
}

// With stride 2 and a kernel of four, each row reaches one row across the boundary on either side. The gradient of a
// row needs four rows of the result: one more on either side.
TEST(Pooling, TransposedConvolutionMovesOnlyHaloRows) {
  on_mesh({kRanks}, [&](const DeviceMesh& mesh) {
    const auto rank = mesh.communicator().rank();
    const std::int64_t sides = rank == 0 || rank == kRanks - 1 ? 1 : 2;
    const at::Tensor x = along(mesh, 32);
    const at::Tensor w = distribute_tensor(at::ones({kChannels, 1, 4}, at::kDouble), mesh, {Replicate()});
    at::Tensor y;
    EXPECT_EQ(rows_received(kRow, [&] { y = at::conv_transpose1d(x, w, {}, 2, 1, 0, kChannels); }), sides);
    EXPECT_EQ(y.size(2), 64);
    EXPECT_EQ(DTensor(y).placements(), (Placements{Shard(2)}));
    const at::Tensor grad = distribute_tensor(at::ones({1, kChannels, 64}, at::kDouble), mesh, {Shard(2)});
    EXPECT_EQ(rows_received(kRow, [&] { y.backward(grad); }), sides);
  });
}

}  // namespace
}  // namespace dtensor::test
