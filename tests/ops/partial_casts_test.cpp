// Casts that are not linear are applied to the sum of a Partial, not to each summand.
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Cast = std::function<at::Tensor(const at::Tensor&)>;

// Checks the cast of a Partial with summands `first` and `second` on two ranks against the cast of the full tensor.
void expect_as_full(double first, double second, at::ScalarType type, const Cast& cast, const std::string& what) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto summand = at::full({3}, mesh.coordinate()->front() == 0 ? first : second, type);
    const auto sum = DTensor::from_local(summand, mesh, {Partial()}, {3}, {1});
    expect_close(cast(sum), cast(sum.full_tensor()), what);
  });
}

// The summands are not zero, but their sum is.
TEST(PartialCasts, CastToBoolUsesTheSum) {
  const Cast casts[] = {[](const auto& t) { return t.to(at::kBool); }, [](const auto& t) { return t.sum(at::kBool); },
                        [](const auto& t) { return t.sum(at::IntArrayRef{0}, false, at::kBool); }};
  for (const auto type : {at::kLong, at::kInt, at::kByte, at::kDouble}) {
    for (const auto& cast : casts) {
      expect_as_full(1, type == at::kByte ? 255 : -1, type, cast, c10::str("a sum of ", type));
    }
  }
}

// A summand is out of the type's range: it becomes infinity, or NaN in a type without infinity.
TEST(PartialCasts, CastToFloat8UsesTheSum) {
  for (const auto to : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    const auto cast = [&](const at::Tensor& t) { return t.to(to).to(at::kFloat); };
    for (const auto from : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      expect_as_full(500, -400, from, cast, c10::str(from, " to ", to));
      expect_as_full(1.1, 2.2, from, cast, c10::str(from, " to ", to));
    }
  }
}

}  // namespace
}  // namespace dtensor::test
