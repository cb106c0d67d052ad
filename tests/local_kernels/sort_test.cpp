// sort of a split vector gives values and indices of one device, including the order of equal elements, and no rank
// stores the full vector. Tensors with another dimension are split along that one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "dtensor/debug.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Few distinct values, so that equal elements are on several ranks, or arbitrary values.
at::Tensor any_vector(Draw& draw, std::int64_t n) {
  const auto types = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool};
  const auto type = types.begin()[draw.integer(0, static_cast<std::int64_t>(types.size()) - 1)];
  const auto few = draw.coin();
  auto x = few ? draw.integers({n}, 5).sub(2).to(at::kDouble) : draw.normal({n}) * 50;
  if (at::isFloatingType(type)) {
    const auto kind = draw.integers({n}, 12);
    x = x.masked_fill(kind.eq(0), std::nan("")).masked_fill(kind.eq(1), -kInfinity).masked_fill(kind.eq(2), kInfinity);
    x = x.masked_fill(kind.eq(3), -0.0).masked_fill(kind.eq(4), 0.0);
  }
  return type == at::kByte ? x.abs().to(type) : x.to(type);
}

void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(at::nan_to_num(DTensor(actual).full_tensor(), 12345), at::nan_to_num(expected, 12345))) << what;
}

RC_GTEST_PROP(Sort, ShardedVectorEqualsOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto n = draw.coin() ? draw.integer(8193, 12000) : draw.integer(0, 40);
    const auto x = any_vector(draw, n);
    const auto descending = draw.coin();
    auto placements = draw.placements(mesh, 1, false);
    const auto dx = distribute_tensor(x, mesh, placements);
    const auto expected = at::sort(x, /*stable=*/true, 0, descending);
    const auto actual = at::sort(dx, /*stable=*/true, 0, descending);
    const auto what = c10::str(DTensor(dx).spec_str(), descending ? " descending" : "");
    expect_same(std::get<0>(actual), std::get<0>(expected), what);
    expect_same(std::get<1>(actual), std::get<1>(expected), what + " indices");
    if (n > 0 && shape != Shape{1}) {
      EXPECT_EQ(DTensor(std::get<0>(actual)).placements(), placements) << what;
    }
    expect_same(at::argsort(dx, /*stable=*/true, 0, descending), std::get<1>(expected), what + " argsort");
    expect_same(at::msort(dx), std::get<0>(at::sort(x, /*stable=*/true, 0, false)), what + " msort");
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

RC_GTEST_PROP(Sort, GradientEqualsOneDevice, ()) {
  const auto shape = *rc::gen::elementOf(mesh_shapes());
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  on_mesh(shape, [&](const DeviceMesh& mesh) {
    Draw draw(seed);
    const auto n = draw.integer(8000, 9000);
    const auto x = draw.normal({n, 1}).requires_grad_(), weight = draw.normal({n, 1});
    const auto dx = distribute_tensor(x.detach(), mesh, draw.placements(mesh, 1, false)).requires_grad_();
    (std::get<0>(x.sort(0)) * weight).sum().backward();
    (std::get<0>(dx.sort(0)) * distribute_tensor(weight, mesh, draw.placements(mesh, 1, false))).sum().backward();
    expect_close(dx.grad(), x.grad(), "grad");
  });
  RC_ASSERT(!testing::Test::HasFailure());
}

// No rank gathers the vector or allocates memory for it.
TEST(Sort, NoRankStoresTheFullTensor) {
  constexpr std::int64_t kCount = 1 << 18;
  Draw draw(1);
  const auto x = draw.normal({kCount}, at::kFloat);
  on_mesh({4}, [&](const DeviceMesh& mesh) {
    const auto dx = distribute_tensor(x, mesh, {Shard(0)});
    const CommDebugMode mode;
    (void)at::sort(dx);
    const auto bytes = mode.total().bytes;
    // At most a value and an index of each remote element, and the bounds.
    EXPECT_LT(bytes, kCount / 4 * 12 + 40000) << mode.table();
    EXPECT_EQ(mode.total("all_to_all").calls, 2);
  });
}

TEST(Sort, AnotherDimensionIsSplitInstead) {
  Draw draw(2);
  const auto x = draw.normal({64, 128});
  on_mesh({4}, [&](const DeviceMesh& mesh) {
    const auto dx = distribute_tensor(x, mesh, {Shard(1)});
    const CommDebugMode mode;
    const auto sorted = at::sort(dx, 1);
    EXPECT_EQ(mode.total("all_to_all").calls, 1) << mode.table();
    EXPECT_EQ(mode.total().calls, 1);
    EXPECT_EQ(DTensor(std::get<0>(sorted)).placements(), Placements{Shard(0)});
    expect_same(std::get<0>(sorted), std::get<0>(at::sort(x, 1)), "values");
  });
}

}  // namespace
}  // namespace dtensor::test
