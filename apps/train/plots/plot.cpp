// Selects what a plot of a run shows; chart/chart.h draws it.
#include "train/plots/plot.h"
#include "chart/chart.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/output/output.h"

namespace train {
namespace {

std::vector<double> steps_of(const Plot& plot, std::size_t count) {
  std::vector<double> steps;
  for (std::size_t i = 0; i < count; ++i)
    steps.push_back(static_cast<double>(plot.first_step) + static_cast<double>(i));
  return steps;
}

constexpr double kWidth = 1.8;  // Of a curve, in pixels.

// By how much a curve is wider than the one on top of it.
double dash_pattern_of(const Plot& plot) {
  const auto others = static_cast<double>(plot.curves.size()) - 1;
  return plot.coincide && others > 0 ? std::min(4.5, 11 / others) : 0;
}

dtensor::ChartPanel curves_panel(const Plot& plot) {
  dtensor::ChartPanel panel{.x_label = "step", .y_label = plot.y_name};
  const double stripe = dash_pattern_of(plot);
  double width = kWidth + stripe * (static_cast<double>(plot.curves.size()) - 1);
  for (const Curve& curve : plot.curves) {
    const auto name = plot.curves.size() == 1 && curve.name == plot.y_name ? "" : curve.name;
    panel.series.push_back({.name = name, .x = steps_of(plot, curve.values.size()), .y = curve.values, .width = width});
    width -= stripe;
  }
  return panel;
}

dtensor::ChartPanel difference_panel(const Plot& plot) {
  return {.x_label = "step",
          .y_label = "relative difference",
          .series = {{.name = "", .x = steps_of(plot, plot.difference.size()), .y = plot.difference, .width = 1.3}},
          .limits = {{plot.bound, fmt::format("bound {:.0e}", plot.bound)}},
          .log_y = true,
          .height = 140};
}

}  // namespace

std::string to_svg(const Plot& plot) {
  dtensor::Chart chart{.title = plot.title, .panels = {curves_panel(plot)}};
  if (!plot.difference.empty()) chart.panels.push_back(difference_panel(plot));
  return dtensor::to_svg(chart);
}

void write_svg(const std::string& path, const Plot& plot) { write_file(path, to_svg(plot)); }

}  // namespace train
