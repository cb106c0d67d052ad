// Scans along a split dimension whose parts alone leave the range of their type, where the whole does not.
#include <limits>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

const std::vector<Placement>& split() {
  static const std::vector<Placement> all{Shard(0), StridedShard(0, 2), ZigzagShard(0)};
  return all;
}

// Rows of numbers that cancel, after a zero, and beyond the range for good.
std::vector<double> rows(double huge) {
  const double tiny = 1 / huge, inf = std::numeric_limits<double>::infinity();
  return {tiny, 1,    huge, huge, 3,    .5,    // back from below
          huge, 1,    tiny, tiny, 2,    5,     // the parts' own products are too small
          0,    1,    huge, huge, huge, 1,     // zero times what is beyond the range
          huge, huge, tiny, tiny, 3,    huge,  //
          2,    3,    inf,  0,    1,    2};    // no number from there on
}

TEST(Scan, ProductsThatLeaveTheRangeAndComeBackAreThoseOfOneDevice) {
  for (const auto& [type, huge] : {std::pair{at::kFloat, 1e30}, {at::kDouble, 1e200}, {at::kHalf, 2e4}}) {
    const auto x = at::tensor(rows(huge), at::kDouble).view({5, 6}).t().contiguous().to(type);
    const auto finite = x.narrow(1, 0, 3).to(at::kDouble);
    for (const auto& full : {x, at::complex(finite, at::zeros_like(finite))}) {
      const auto expected = at::cumprod(full, 0);
      for (const auto& placement : split()) {
        for (const Shape& shape : {Shape{2}, Shape{3}, Shape{4}}) {
          on_mesh(shape, [&](const DeviceMesh& mesh) {
            const auto product = at::cumprod(distribute_tensor(full, mesh, {placement}), 0);
            EXPECT_EQ(DTensor(product).placements(), Placements{placement});
            EXPECT_TRUE(at::allclose(full_of(product), expected, 0, 0, /*equal_nan=*/true)) << placement.str();
          });
        }
      }
    }
  }
}

TEST(Scan, ProductsOfEveryLayoutHaveTheGradientOfOneDevice) {
  const auto x = Draw(3).normal({7, 3});
  equal_everywhere("cumprod", {x}, [](const auto& t) { return at::cumprod(t[0], 0); });
  equal_everywhere("of nothing", {x.narrow(0, 0, 0)}, [](const auto& t) { return at::cumprod(t[0], 0); });
}

}  // namespace
}  // namespace dtensor::test
