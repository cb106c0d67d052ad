// One panel of a chart: legend, axes and series.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "chart/canvas.h"
#include "chart/chart.h"
#include "chart/scale.h"

namespace dtensor {

// Position of a panel in pixels. The plot is `axis` right of `left` and `header` below `top`.
struct PanelPosition {
  double left, top, width, axis, header;
};

class PanelDrawing {
 public:
  PanelDrawing(const ChartPanel& panel, const PanelPosition& place);
  void draw(SvgCanvas& canvas) const;

  // Width of the name and the tick labels of the vertical axis.
  static double axis_width(const ChartPanel& panel);
  // Height of the title, the legend and the labels of bands, for a panel width without the axis.
  static double header_height(const ChartPanel& panel, double width);
  // The width without the axis that title, notes and the widest legend entry need.
  static double min_width(const ChartPanel& panel);
  static double height(const ChartPanel& panel, double header);

 private:
  void draw_title(SvgCanvas& canvas) const;
  void draw_legend(SvgCanvas& canvas) const;
  void draw_entry(SvgCanvas& canvas, std::size_t series, double x, double y) const;
  void draw_bands(SvgCanvas& canvas) const;
  void draw_axes(SvgCanvas& canvas) const;
  void draw_areas(SvgCanvas& canvas) const;
  void draw_line(SvgCanvas& canvas, std::size_t series) const;
  void draw_limits(SvgCanvas& canvas) const;
  void draw_notes(SvgCanvas& canvas) const;

  const ChartPanel& panel_;
  const PanelPosition position_;
  double left_, right_, top_, bottom_;  // edges of the plot
  Scale x_, y_;
};

}  // namespace dtensor
