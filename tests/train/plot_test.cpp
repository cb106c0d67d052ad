// Plots of unusual curves: flat, of one point, large, not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "train/plots/plot.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kMost = std::numeric_limits<double>::max();

// No coordinate is nan or inf, which viewers refuse.
TEST(Plot, UnusualCurvesAreDrawn) {
  const double nan = std::nan("");
  for (const std::vector<double>& values : std::vector<std::vector<double>>{
           {5}, {3e10, 3e10, 3e10}, {-1e15}, {nan}, {kInf, -kInf}, {kMost, -kMost, 2}, {1, nan, 2}, {1e16, 1e16}}) {
    for (const bool with_difference : {false, true}) {
      train::Plot plot{.title = "odd", .curves = {{"curve", values}}};
      if (with_difference) plot.difference = values, plot.bound = 1e-5;
      const auto svg = train::to_svg(plot);
      EXPECT_LT(svg.size(), 20000U) << values[0];
      EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    }
  }
}

// NaN is not reported as equality.
TEST(Plot, NaNDifferenceIsNotEqual) {
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
