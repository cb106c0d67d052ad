// Every rank clips by one norm: plain tensors that differ are an error whatever lies beside them, ranks outside a mesh
// get the number that the others get, and what overflows in single precision on one layout overflows on none.
#include <cmath>

#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Large tensors are summed by ATen in single precision; a shard of them may be small.
TEST(ClipAgreement, SquaresThatOverflowDoSoOnNoLayout) {
  on_mesh({4}, [](const DeviceMesh& mesh) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kComplexFloat}) {
      for (const double p : {2.0, 3.0}) {
        const double value = at::full({}, 1e20, dtype == at::kBFloat16 ? dtype : at::kFloat).item<double>();
        const at::Tensor whole = at::full({20000}, value, dtype);
        const double expected = value * std::pow(20000, 1 / p);
        for (const at::Tensor& t : {whole, at::Tensor(distribute_tensor(whole, mesh, {Shard(0)}))}) {
          EXPECT_NEAR(get_total_norm({t}, {.norm_type = p}).item<double>(), expected, 1e-6 * expected) << dtype;
        }
      }
    }
    const at::Tensor infinite = at::full({20000}, kInfinity, at::kFloat);
    EXPECT_EQ(get_total_norm({infinite}).item<double>(), kInfinity);
  });
}

}  // namespace
}  // namespace dtensor::test
