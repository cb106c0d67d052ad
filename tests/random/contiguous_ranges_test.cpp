// Ranges of random fills at the limits of a dtype.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "random/fill.h"
#include "support/errors.h"

namespace dtensor {
namespace {

using test::error_of;

constexpr RandomKey kKey{42, 7};

GlobalRegion full_region(at::IntArrayRef sizes) { return region_of(sizes, {Replicate()}, {1}, {0}); }

// After rounding to the dtype, an integer of the range may be outside of it: 999 becomes 1000 in bfloat16.
RC_GTEST_PROP(RandomRanges, IntegersStayInTheirRangeInEveryDtype, ()) {
  const std::vector<at::ScalarType> floats{at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  const auto dtype = *rc::gen::elementOf(floats);
  const auto top = std::int64_t{1} << *rc::gen::inRange(0, dtype == at::kHalf ? 15 : 62);
  const auto from = *rc::gen::inRange<std::int64_t>(-top, top);
  const auto to = from + *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 5, 40, top});
  auto t = at::empty({256}, dtype);
  const auto error = error_of([&] { fill_integers(t, full_region({256}), kKey, from, to); });
  if (error != "no error") {
    RC_ASSERT(to - from < 8 * top / 256 + 8);  // as wide a range holds some
    RC_ASSERT(error.find("represents no integer") != std::string::npos);
    return;
  }
  const auto values = t.to(at::kDouble);
  for (int i = 0; i < 256; ++i) {
    const auto value = static_cast<std::int64_t>(values[i].item<double>());
    RC_ASSERT(value >= from);
    RC_ASSERT(value < to);
  }
}

TEST(RandomRanges, NarrowIntegersReachTheLimitsOfTheirDtype) {
  auto t = at::empty({1 << 16}, at::kBFloat16);
  fill_integers(t, full_region({1 << 16}), kKey, 0, 1000);
  EXPECT_EQ(t.max().item<double>(), 996);
  EXPECT_EQ(t.min().item<double>(), 0);
  fill_integers(t, full_region({1 << 16}), kKey, -999, 5);
  EXPECT_EQ(t.min().item<double>(), -996);
  EXPECT_EQ(error_of([&] { fill_integers(t, full_region({1 << 16}), kKey, 999, 1000); }),
            "random_: BFloat16 represents no integer from 999 to 999");
  auto f = at::empty({64}, at::kFloat);
  fill_integers(f, full_region({64}), kKey, (1 << 24) + 1, (1 << 24) + 4);
  EXPECT_TRUE(f.eq((1 << 24) + 2).all().item<bool>()) << f;
}

TEST(RandomRanges, EmptyIntegerRangesAreRefused) {
  auto t = at::empty({4}, at::kLong);
  EXPECT_NE(error_of([&] {
              fill_integers(t, full_region({4}), kKey, 0, std::numeric_limits<std::int64_t>::min());
            }).find("from = 0 and to = -9223372036854775808"),
            std::string::npos);
}

// As in ATen, which is called only for the first call.
TEST(RandomRanges, UniformBoundsMustBeRepresentable) {
  const auto says = [](at::ScalarType dtype, double from, double to, const std::string& part) {
    auto t = at::empty({2}, dtype);
    const std::string error = error_of([&] { fill_uniform(t, full_region({2}), kKey, from, to); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  says(at::kFloat, 0, INFINITY, "to = inf is out of range for Float");
  says(at::kFloat, -1e39, 0, "from = -1e+39 is out of range for Float");
  says(at::kFloat, -3e38, 3e38, "for Float, got from = -3e+38 and to = 3e+38");
  says(at::kFloat, 0, NAN, "got from = 0 and to = nan");
  says(at::kHalf, 0, 70000, "to = 70000 is out of range for Half");
  says(at::kComplexDouble, -1e308, 1e308, "uniform_ expects to - from <= ");
  says(at::kFloat, -1e38, 1e38, "no error");
}

}  // namespace
}  // namespace dtensor
