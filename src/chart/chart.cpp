// Arranges panels in rows; the plots of a row have the same vertical position.
#include "chart/chart.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <span>

#include "chart/panel.h"

namespace dtensor {
namespace {

constexpr double kTitle = 16, kTitleRow = 44, kEdge = 12;

void check(const Chart& chart) {
  TORCH_CHECK(chart.columns > 0, "chart: expected at least 1 column, got 0");
  for (const auto& panel : chart.panels) {
    std::size_t area = std::string::npos;  // number of points of an area
    for (const auto& series : panel.series) {
      TORCH_CHECK(series.x.size() == series.y.size(), "chart: the series '", series.name, "' has ", series.x.size(),
                  " values of x and ", series.y.size(), " of y; expected equal numbers");
      if (series.style != ChartSeries::Style::area) continue;
      if (area == std::string::npos) area = series.x.size();
      TORCH_CHECK(series.x.size() == area, "chart: expected the same x for all stacked areas, got ", area,
                  " points, and for '", series.name, "', ", series.x.size());
    }
  }
}

// Draws the first panel at `place` and the others to its right. Returns the height of the row.
double draw_row(SvgCanvas& canvas, std::span<const ChartPanel> panels, PanelPosition place) {
  double height = 0;
  for (const auto& panel : panels)
    place.header = std::max(place.header, PanelDrawing::header_height(panel, place.width - place.axis));
  for (const auto& panel : panels) {
    PanelDrawing(panel, place).draw(canvas);
    place.left += place.width;
    height = std::max(height, PanelDrawing::height(panel, place.header));
  }
  return height;
}

}  // namespace

std::string to_svg(const Chart& chart) {
  check(chart);
  double width = chart.width, axis = 0;  // of a panel; all panels have the same axis width, which aligns their plots
  for (const auto& panel : chart.panels) axis = std::max(axis, PanelDrawing::axis_width(panel));
  for (const auto& panel : chart.panels) width = std::max(width, axis + PanelDrawing::min_width(panel));
  const std::size_t columns = std::max<std::size_t>(1, std::min(chart.columns, chart.panels.size()));
  const double full = std::max(width * static_cast<double>(columns), text_width(chart.title, kTitle) + 2 * kEdge);
  SvgCanvas canvas;
  double top = kEdge;
  if (!chart.title.empty()) {
    canvas.text(full / 2, top + kTitle, Anchor::middle, chart.title, "font-size=\"16\"");
    top = kTitleRow;
  }
  for (std::size_t first = 0; first < chart.panels.size(); first += columns) {
    const auto row = std::span(chart.panels).subspan(first, std::min(columns, chart.panels.size() - first));
    top += draw_row(canvas, row, {.left = 0, .top = top, .width = width, .axis = axis, .header = 0});
  }
  return canvas.str(full, top);
}

}  // namespace dtensor
