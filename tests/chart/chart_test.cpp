// Charts: texts lie inside the document, series are distinguishable, and all coordinates are finite.

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <regex>
#include <set>

#include "chart/canvas.h"
#include "chart/chart.h"
#include "chart/scale.h"

namespace dtensor::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kMost = std::numeric_limits<double>::max();
using Style = ChartSeries::Style;

std::vector<std::vector<std::string>> matches(const std::string& svg, const std::string& pattern) {
  std::vector<std::vector<std::string>> all;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(svg.begin(), svg.end(), regex), end; it != end; ++it) {
    auto& groups = all.emplace_back();
    for (std::size_t i = 1; i < it->size(); ++i) groups.push_back((*it)[static_cast<int>(i)]);
  }
  return all;
}

std::size_t count(const std::string& svg, const std::string& pattern) { return matches(svg, pattern).size(); }

ChartSeries series(const std::string& name, std::vector<double> y, Style style = Style::line) {
  std::vector<double> x;
  for (std::size_t i = 0; i < y.size(); ++i) x.push_back(static_cast<double>(i));
  return {.name = name, .x = x, .y = std::move(y), .style = style};
}

// A letter of DejaVu Sans is on average 0.6 of the font size wide. It is the widest of the common sans-serif fonts.
void expect_texts_inside(const std::string& svg) {
  const double width = std::stod(matches(svg, "viewBox=\"0 0 ([0-9]+)").at(0).at(0));
  const auto texts = matches(svg, "<text x=\"([-0-9.]+)\" y=\"[-0-9.]+\" text-anchor=\"(\\w+)\" ([^>]*)>([^<]*)<");
  RC_ASSERT(!texts.empty());
  for (const auto& text : texts) {
    if (text[2].find("rotate") != std::string::npos) continue;
    const double at = std::stod(text[0]), wide = 0.63 * 13 * static_cast<double>(text[3].size());
    const double left = text[1] == "start" ? at : text[1] == "end" ? at - wide : at - wide / 2;
    RC_ASSERT(left >= 0);
    RC_ASSERT(left + wide <= width);
  }
}

RC_GTEST_PROP(Chart, AllTextsLieInsideTheDocument, ()) {
  const auto word = [] {
    const auto length = *rc::gen::inRange<std::size_t>(1, 120);
    return *rc::gen::container<std::string>(length, rc::gen::element('a', 'b', 'd', 'n', 'o', 'u'));
  };
  Chart chart{.columns = *rc::gen::inRange<std::size_t>(1, 4)};
  for (int i = *rc::gen::inRange(1, 5); i > 0; --i) {
    ChartPanel panel{.title = word(), .x_label = "step", .y_label = "loss"};
    for (int s = *rc::gen::inRange(1, 12); s > 0; --s) panel.series.push_back(series(word(), {1, 2, 3}));
    if (*rc::gen::arbitrary<bool>()) panel.series[0].x = {0, 1e9, 123456789000};
    if (*rc::gen::arbitrary<bool>()) panel.x_ticks = {1, 2, 123456789000};
    if (*rc::gen::arbitrary<bool>()) panel.notes = {word(), word()};
    if (*rc::gen::arbitrary<bool>()) panel.bands = {{0, 1, word()}, {1, 2, "b"}};
    chart.panels.push_back(std::move(panel));
  }
  expect_texts_inside(to_svg(chart));
}

// Entries of a legend do not overlap: in a row, each entry begins after the end of the previous one.
TEST(Chart, LegendWrapsAboveThePlot) {
  ChartPanel panel{.x_label = "x", .y_label = "y"};
  for (int i = 0; i < 9; ++i) panel.series.push_back(series("a name of a series " + std::to_string(i), {1, 2}));
  const auto svg = to_svg({.panels = {panel}});
  const auto entries = matches(svg, "<text x=\"([0-9.]+)\" y=\"([0-9.]+)\"[^>]*>(a name[^<]*)<");
  ASSERT_EQ(entries.size(), 9U);
  std::set<std::string> rows;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    rows.insert(entries[i][1]);
    if (i == 0 || entries[i][1] != entries[i - 1][1]) continue;
    EXPECT_GE(std::stod(entries[i][0]), std::stod(entries[i - 1][0]) + text_width(entries[i - 1][2], 13));
  }
  EXPECT_GT(rows.size(), 1U);
  const double first_grid_line = std::stod(matches(svg, "<line x1=\"[0-9.]+\" y1=\"([0-9.]+)\"[^>]*opacity").back()[0]);
  for (const auto& y : rows) EXPECT_LT(std::stod(y), first_grid_line);
}

TEST(Chart, SeriesHaveDistinctStyles) {
  ChartPanel panel;
  for (int i = 0; i < 24; ++i) panel.series.push_back(series("", {1, 2}));
  std::set<std::string> styles;
  for (const auto& line : matches(to_svg({.panels = {panel}}), "<polyline fill=\"none\" ([^>]*) points"))
    styles.insert(line[0]);
  EXPECT_EQ(styles.size(), 24U);
}

TEST(Chart, AxesHaveLabels) {
  const auto svg = to_svg({.panels = {{.x_label = "time, ms", .y_label = "a < b", .series = {series("", {1, 2})}}}});
  EXPECT_EQ(count(svg, ">time, ms<"), 1U);
  EXPECT_EQ(count(svg, "rotate[^>]*>a &lt; b<"), 1U);
}

TEST(Chart, NonFiniteValuesAreNotDrawn) {
  const double nan = std::nan("");
  for (const std::vector<double>& y : std::vector<std::vector<double>>{
           {}, {5}, {3e10, 3e10, 3e10}, {-1e15}, {nan}, {kInf, -kInf}, {kMost, -kMost, 2}, {1, nan, 2}, {1e16, 1e16}}) {
    for (const auto style : {Style::line, Style::steps, Style::points, Style::area}) {
      for (const bool log : {false, true}) {
        const auto svg = to_svg({.panels = {{.series = {series("c", y, style)}, .limits = {{0, "l"}}, .log_y = log}}});
        EXPECT_LT(svg.size(), 20000U);
        EXPECT_EQ(count(svg, "nan|inf"), 0U) << svg;
      }
    }
  }
}

// A value below the axis is drawn differently from zero.
TEST(Chart, LogarithmicAxisDrawsZeroOnItsEdgeAndSkipsNaN) {
  const auto points = [](double value) {
    const auto svg = to_svg({.panels = {{.series = {series("", {value})}, .limits = {{1e-5, ""}}, .log_y = true}}});
    return matches(svg, "points=\"([^\"]*)\"").at(0).at(0);
  };
  EXPECT_NE(points(0), "");
  EXPECT_NE(points(1e-7), points(0));
  EXPECT_EQ(points(std::nan("")), "");
}

TEST(Chart, AreasAreStacked) {
  const auto svg = to_svg({.panels = {{.series = {series("a", {1, 1}, Style::area), series("b", {3, 3}, Style::area)},
                                       .y_low = 0,
                                       .y_high = 4,
                                       .height = 100}}});
  const auto polygons = matches(svg, "<polygon [^>]*points=\"[0-9.]+,([0-9.]+) [0-9.]+,[0-9.]+ [0-9.]+,([0-9.]+)");
  ASSERT_EQ(polygons.size(), 2U);
  const auto height = [&](std::size_t i) { return std::stod(polygons[i][1]) - std::stod(polygons[i][0]); };
  EXPECT_NEAR(height(0), 25, 0.11);
  EXPECT_NEAR(height(1), 75, 0.11);
  EXPECT_EQ(polygons[0][0], polygons[1][1]);
}

TEST(Chart, RejectsSeriesOfUnequalLengths) {
  ChartSeries odd{.name = "odd", .x = {1}, .y = {1, 2}};
  EXPECT_THROW(to_svg({.panels = {{.series = {odd}}}}), c10::Error);
  EXPECT_THROW(to_svg({.panels = {{.series = {series("a", {1}, Style::area), series("b", {1, 2}, Style::area)}}}}),
               c10::Error);
  EXPECT_THROW(to_svg({.panels = {}, .columns = 0}), c10::Error);
  EXPECT_EQ(count(to_svg({}), "</svg>"), 1U);
}

// Each case would exhaust memory if the number of ticks were unbounded.
TEST(Ticks, CountIsBoundedForAnyRange) {
  const std::vector<double> sizes = {0, 1e-300, 1e-7, 5, 1e6, 1e10, 3e15, 1e16, 1e38, 1e300, kMost};
  for (const double size : sizes) {
    for (const double width : {0.0, 1e-9, 1e-6, 1.0, 1e-16 * size, 1e-15 * size, size / 3, size}) {
      for (const auto& [low, high] : {std::pair(size - width, size), std::pair(-size, width - size)}) {
        const auto ticks = round_ticks(low, high, 6);
        EXPECT_LE(ticks.size(), 8U) << low << " " << high;
        for (std::size_t i = 0; i < ticks.size(); ++i) {
          const double slack = 1e-6 * std::max(high - low, 1e-12) + 1e-14 * size;
          EXPECT_TRUE(ticks[i] >= low - slack && ticks[i] <= high + slack) << ticks[i] << " " << low << " " << high;
          EXPECT_TRUE(i == 0 || ticks[i] > ticks[i - 1]);
        }
      }
    }
  }
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_LE(round_ticks(-kMost, kMost, 6).size(), 8U);
}

TEST(Ticks, NonFiniteRangesHaveNone) {
  for (const double odd : {kInf, -kInf, std::nan("")}) {
    EXPECT_TRUE(round_ticks(odd, 1, 6).empty());
    EXPECT_TRUE(round_ticks(1, odd, 6).empty());
    EXPECT_TRUE(round_ticks(odd, odd, 6).empty());
  }
}

RC_GTEST_PROP(Ticks, LieInsideTheirRange, ()) {
  const double low = *rc::gen::inRange(-1000, 1000) * 0.01, high = low + *rc::gen::inRange(1, 100000) * 0.001;
  const std::vector<double> ticks = round_ticks(low, high, 6);
  RC_ASSERT(ticks.size() >= 2u && ticks.size() <= 8u);
  RC_ASSERT(ticks.front() >= low - 1e-6 && ticks.back() <= high + 1e-6);
}

}  // namespace
}  // namespace dtensor::test
