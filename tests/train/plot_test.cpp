// Pictures of curves that are no usual ones: flat, of one point, large, not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "train/plot.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kMost = std::numeric_limits<double>::max();

// Each test would run out of memory where marks are counted for ever.
TEST(Ticks, AreFewAndWithinTheirRangeWhateverItIs) {
  const std::vector<double> sizes = {0, 1e-300, 1e-7, 5, 1e6, 1e10, 3e15, 1e16, 1e38, 1e300, kMost};
  for (const double size : sizes) {
    for (const double width : {0.0, 1e-9, 1e-6, 1.0, 1e-16 * size, 1e-15 * size, size / 3, size}) {
      for (const auto& [low, high] : {std::pair(size - width, size), std::pair(-size, width - size)}) {
        const auto ticks = train::nice_ticks(low, high, 6);
        EXPECT_LE(ticks.size(), 8U) << low << " " << high;
        for (std::size_t i = 0; i < ticks.size(); ++i) {
          const double slack = 1e-6 * std::max(high - low, 1e-12) + 1e-14 * size;
          EXPECT_TRUE(ticks[i] >= low - slack && ticks[i] <= high + slack) << ticks[i] << " " << low << " " << high;
          EXPECT_TRUE(i == 0 || ticks[i] > ticks[i - 1]);
        }
      }
    }
  }
  EXPECT_EQ(train::nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_LE(train::nice_ticks(-kMost, kMost, 6).size(), 8U);
}

TEST(Ticks, OfWhatIsNotFiniteAreNone) {
  for (const double odd : {kInf, -kInf, std::nan("")}) {
    EXPECT_TRUE(train::nice_ticks(odd, 1, 6).empty());
    EXPECT_TRUE(train::nice_ticks(1, odd, 6).empty());
    EXPECT_TRUE(train::nice_ticks(odd, odd, 6).empty());
  }
}

// No coordinate is nan or inf, as a viewer would refuse.
TEST(Picture, IsDrawnOfCurvesThatAreNoUsualOnes) {
  const double nan = std::nan("");
  for (const std::vector<double>& values : std::vector<std::vector<double>>{
           {5}, {3e10, 3e10, 3e10}, {-1e15}, {nan}, {kInf, -kInf}, {kMost, -kMost, 2}, {1, nan, 2}, {1e16, 1e16}}) {
    for (const bool with_difference : {false, true}) {
      train::Picture picture{.title = "odd", .curves = {{"curve", values}}};
      if (with_difference) picture.difference = values, picture.bound = 1e-5;
      const auto svg = train::to_svg(picture);
      EXPECT_LT(svg.size(), 20000U) << values[0];
      EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    }
  }
}

// What cannot be told apart from nothing is no equality.
TEST(Picture, ShowsNoDifferenceThatIsNaNAsEqual) {
  const auto points = [](double difference) {
    const auto svg = train::to_svg(
        {.title = "t", .curves = {{"one device", {1}}, {"run", {1}}}, .difference = {difference}, .bound = 1e-5});
    const auto begin = svg.rfind("points=\"") + 8;
    return svg.substr(begin, svg.find('"', begin) - begin);
  };
  EXPECT_NE(points(0), "");
  EXPECT_NE(points(1e-7), points(0));
  EXPECT_EQ(points(std::nan("")), "");
}

}  // namespace
