// Charts as SVG: lines, steps, points and stacked areas over a common axis. Memory timelines and the plots of the
// examples use them, with the same axes, colors and legends.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace dtensor {

// One curve, or one layer of stacked areas.
struct ChartSeries {
  // A line joins `points`. Areas share their x values.
  enum class Style { line, steps, points, area };
  std::string name = {};       // Name in the legend. Empty: not listed.
  std::vector<double> x = {};  // Values along the horizontal axis.
  std::vector<double> y = {};  // As many as x; non-finite points are left out.
  Style style = Style::line;   // How the values are drawn.
  double width = 1.8;          // Line width in pixels.
};

// A shaded range of x between dashed lines.
struct ChartBand {
  double begin;            // Left end.
  double end;              // Right end.
  std::string label = {};  // Above the plot if there is space.
};

// A dashed horizontal line.
struct ChartLimit {
  double y;                // Position on the vertical axis.
  std::string label = {};  // Above the line, at the right.
};

// One plot with its axes and a legend above it.
struct ChartPanel {
  std::string title = {};                                    // Above the legend.
  std::string x_label = {};                                  // Name and unit of the horizontal axis.
  std::string y_label = {};                                  // Name and unit of the vertical axis.
  std::vector<ChartSeries> series = {};                      // Drawn in this order.
  std::vector<ChartBand> bands = {};                         // Drawn below the series.
  std::vector<ChartLimit> limits = {};                       // Drawn on top of the series.
  std::vector<double> x_ticks = {};                          // Ticks; the axis includes them. Empty: round numbers.
  std::vector<std::string> notes = {};                       // Lines of text at the right of the plot.
  double y_low = std::numeric_limits<double>::quiet_NaN();   // Lower end of the axis. NaN: from the series.
  double y_high = std::numeric_limits<double>::quiet_NaN();  // Upper end of the axis. NaN: from the series.
  bool log_y = false;                                        // Logarithmic axis with 0 at its lower end.
  double height = 290;                                       // Height of the plot in pixels.
};

// Panels in a grid.
struct Chart {
  std::string title = {};               // Above all panels.
  std::vector<ChartPanel> panels = {};  // Row by row.
  std::size_t columns = 1;              // Number of panels in a row.
  double width = 860;                   // Width of a panel in pixels; text may widen it.
};

// Returns the SVG document. Throws c10::Error if x and y of a series, or the areas of a panel, differ in length.
std::string to_svg(const Chart& chart);

}  // namespace dtensor
