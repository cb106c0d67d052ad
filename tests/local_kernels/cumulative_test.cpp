// Scans along a split dimension in which the parts alone exceed the range of their dtype, but the full scan does not.
#include <limits>

#include "pitfalls/all_placements.h"

namespace dtensor::test {
namespace {

const std::vector<Placement>& split() {
  static const std::vector<Placement> all{Shard(0), StridedShard(0, 2), ZigzagShard(0)};
  return all;
}

// Rows of numbers that cancel, contain a zero, or exceed the range.
std::vector<double> rows(double huge) {
  const double tiny = 1 / huge, inf = std::numeric_limits<double>::infinity();
  return {tiny, 1,    huge, huge, 3,    .5,    // returns from underflow
          huge, 1,    tiny, tiny, 2,    5,     // products of the parts underflow
          0,    1,    huge, huge, huge, 1,     // zero times an overflow
          huge, huge, tiny, tiny, 3,    huge,  //
          2,    3,    inf,  0,    1,    2};    // NaN from here on
}

TEST(Scan, ProductsWithIntermediateOverflowEqualOneDevice) {
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

TEST(Scan, GradientsOfProductsEqualOneDevice) {
  const auto x = Draw(3).normal({7, 3});
  equal_everywhere("cumprod", {x}, [](const auto& t) { return at::cumprod(t[0], 0); });
  equal_everywhere("cumprod of an empty tensor", {x.narrow(0, 0, 0)},
                   [](const auto& t) { return at::cumprod(t[0], 0); });
}

}  // namespace
}  // namespace dtensor::test
