// Two panels over the same lengths; chart/chart.h draws them.
#include "plot.h"
#include "chart/chart.h"

#include <fmt/format.h>

namespace long_sequence {
namespace {

using Value = double (*)(const Cost&);

dtensor::ChartPanel panel_of(const std::vector<std::int64_t>& tokens, const std::vector<Line>& lines,
                             const std::string& name, Value value) {
  const std::vector<double> lengths(tokens.begin(), tokens.end());
  dtensor::ChartPanel panel{
      .x_label = "sequence length, tokens", .y_label = name, .x_ticks = lengths, .y_low = 0, .height = 240};
  for (const Line& line : lines) {
    dtensor::ChartSeries series{.name = fmt::format("{} rank{}", line.ranks, line.ranks == 1 ? "" : "s"),
                                .x = lengths,
                                .style = dtensor::ChartSeries::Style::points};
    for (const Cost& cost : line.costs) series.y.push_back(value(cost));
    panel.series.push_back(std::move(series));
  }
  return panel;
}

}  // namespace

std::string costs_svg(const std::vector<std::int64_t>& tokens, const std::vector<Line>& lines) {
  return dtensor::to_svg({.title = "forward and backward of two blocks, the sequence split over ranks",
                          .panels = {panel_of(tokens, lines, "peak memory of a rank, MiB",
                                              [](const Cost& c) { return c.bytes / 1048576; }),
                                     panel_of(tokens, lines, "processor time of the busiest rank, s",
                                              [](const Cost& c) { return c.processor; })},
                          .columns = 2,
                          .width = 460});
}

}  // namespace long_sequence
