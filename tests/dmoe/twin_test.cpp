// Every variant of the dropless layer equals its formulas in plain ATen, including clipping and AdamW.
#include <gtest/gtest.h>

#include "dmoe/twin.h"
#include "dtensor/launch.h"

namespace dmoe {
namespace {

class Twin : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Twin, EveryVariantEqualsItsFormulas) {
  dtensor::run_local(2, [&](const dtensor::Communicator& world) {
    const auto reference = run(world, Variant::one_device, GetParam());
    EXPECT_GT(reference.norms[0], 1) << "the norm is too small to be clipped";
    for (const auto form : distributed_variants()) {
      const auto d = difference(run(world, form, GetParam()), reference);
      EXPECT_LE(d.output, bound(GetParam())) << name_of(form);
      EXPECT_LE(d.gradient, bound(GetParam())) << name_of(form);
      EXPECT_LE(d.norm, bound(GetParam())) << name_of(form);
      EXPECT_LE(d.parameter, bound(GetParam())) << name_of(form);
    }
  });
}

// NaN in any compared value exceeds every bound.
TEST(TwinDifference, NaNIsNotWithinTheBound) {
  const TrainingRun fine{
      {at::ones({2}), at::ones({2})}, {at::ones({2}), at::ones({2})}, {at::ones({2}), at::ones({2})}, {1, 1}};
  EXPECT_EQ(difference(fine, fine).largest(), 0);
  for (const std::size_t at : {0, 1}) {
    for (const auto member : {&TrainingRun::outputs, &TrainingRun::gradients, &TrainingRun::parameters}) {
      TrainingRun broken = fine;
      (broken.*member)[at] = at::full({2}, NAN);
      EXPECT_FALSE(difference(broken, fine).largest() <= bound(at::kFloat)) << at;
    }
    TrainingRun broken = fine;
    broken.norms[at] = NAN;
    EXPECT_FALSE(difference(broken, fine).largest() <= bound(at::kFloat)) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Twin, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace dmoe
