// Charts as SVG: lines, steps, points and stacked areas over a common axis. Memory timelines and the plots of the
// examples are drawn by it, so that all have the same axes, colours and legends.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// One curve, or one layer of the areas that are stacked.
struct ChartSeries {
  // `points` are joined by a line; areas share their x.
  enum class Style { line, steps, points, area };
  std::string name = {};       // in the legend; empty: not listed there
  std::vector<double> x = {};  // values along the horizontal axis
  std::vector<double> y = {};  // as many as of x; a point that is not finite is left out
  Style style = Style::line;   // how the values are drawn
  double width = 1.8;          // of a line, in pixels
};

// A range of x, shaded between dashed lines.
struct ChartBand {
  double begin;            // at the left
  double end;              // at the right
  std::string label = {};  // above the plot, where there is room for it
};

// A dashed horizontal line.
struct ChartLimit {
  double y;                // its height
  std::string label = {};  // above it, at the right
};

// One plot with its axes, and its legend above it.
struct ChartPanel {
  std::string title = {};                                    // above the legend
  std::string x_label = {};                                  // name of the horizontal axis, with its unit
  std::string y_label = {};                                  // name of the vertical axis, with its unit
  std::vector<ChartSeries> series = {};                      // later ones on top
  std::vector<ChartBand> bands = {};                         // below the series
  std::vector<ChartLimit> limits = {};                       // on top of the series
  std::vector<double> x_ticks = {};                          // on the axis, which reaches as far; empty: round numbers
  std::vector<std::string> notes = {};                       // lines of text at the right of the plot
  double y_low = std::numeric_limits<double>::quiet_NaN();   // lower end of the axis; NaN: as the series need
  double y_high = std::numeric_limits<double>::quiet_NaN();  // upper end of the axis; NaN: as the series need
  bool log_y = false;                                        // logarithmic, with 0 at the lower end
  double height = 290;                                       // of the plot, in pixels
};

// Panels side by side and one below the other.
struct Chart {
  std::string title = {};               // above all panels
  std::vector<ChartPanel> panels = {};  // row by row
  std::size_t columns = 1;              // panels in a row
  double width = 860;                   // of a panel in pixels; more where its text needs it
};

// The document. Throws c10::Error where x and y of a series, or the areas of a panel, differ in length.
DTENSOR_API std::string to_svg(const Chart& chart);

}  // namespace dtensor
