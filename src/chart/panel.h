// One panel of a chart: its legend, its axes, its series.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "chart/canvas.h"
#include "chart/scale.h"
#include "dtensor/chart.h"

namespace dtensor {

// Pixels of the document. The plot lies `axis` right of `left` and `header` below `top`.
struct PanelPosition {
  double left, top, width, axis, header;
};

class PanelDrawing {
 public:
  PanelDrawing(const ChartPanel& panel, const PanelPosition& place);
  void draw(SvgCanvas& canvas) const;

  // Of the name and the marks of the vertical axis.
  static double axis_width(const ChartPanel& panel);
  // Of title, legend and labels of bands, at a width of the panel without its axis.
  static double header_height(const ChartPanel& panel, double width);
  // Without its axis: title, notes and the widest entry of the legend fit.
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
  double left_, right_, top_, bottom_;  // of the plot
  Scale x_, y_;
};

}  // namespace dtensor
