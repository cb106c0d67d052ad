// A sum of which ranks hold shares changes type as a whole, where shares that do so one by one are none of the result.
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Cast = std::function<at::Tensor(const at::Tensor&)>;

// The sum of `first` and `second`, shares of two ranks, becomes what the whole becomes.
void expect_as_full(double first, double second, at::ScalarType type, const Cast& cast, const std::string& what) {
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const auto share = at::full({3}, mesh.coordinate()->front() == 0 ? first : second, type);
    const auto sum = DTensor::from_local(share, mesh, {Partial()}, {3}, {1});
    expect_close(cast(sum), cast(sum.full_tensor()), what);
  });
}

// Neither share is zero, and their sum is.
TEST(PartialCasts, TruthIsThatOfTheSum) {
  const Cast casts[] = {[](const auto& t) { return t.to(at::kBool); }, [](const auto& t) { return t.sum(at::kBool); },
                        [](const auto& t) { return t.sum(at::IntArrayRef{0}, false, at::kBool); }};
  for (const auto type : {at::kLong, at::kInt, at::kByte, at::kDouble}) {
    for (const auto& cast : casts) {
      expect_as_full(1, type == at::kByte ? 255 : -1, type, cast, c10::str("a sum of ", type));
    }
  }
}

// The shares lie where the type does not reach, or the one that has no infinity says NaN.
TEST(PartialCasts, TypesOf8BitsTakeTheSum) {
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
