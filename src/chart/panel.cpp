// Layout and drawing of the parts of a panel.
#include "chart/panel.h"

#include <algorithm>
#include <array>

namespace dtensor {
namespace {

constexpr double kFont = 13, kRow = 20, kGap = 18, kMargin = 16, kMark = 8, kNameRow = 24;
constexpr double kBelow = 58;  // tick labels and name of the horizontal axis
// Distinguishable with any kind of color vision (Okabe and Ito). A ninth series gets the first color with dashes.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f"};
constexpr std::array kDashes = {"", "7 3", "2 3", "9 3 2 3"};
constexpr const char* kFrame = "stroke=\"#555\"";
constexpr const char* kGrid = "stroke=\"#000\" stroke-opacity=\"0.12\"";

using Style = ChartSeries::Style;

std::string color_of(std::size_t series) { return kColors[series % kColors.size()]; }

std::string stroke_of(std::size_t series, double width) {
  const std::string dashes = kDashes[series / kColors.size() % kDashes.size()];
  return "stroke=\"" + color_of(series) + "\" stroke-width=\"" + tick_label(width) + "\" stroke-linejoin=\"round\"" +
         (dashes.empty() ? "" : " stroke-dasharray=\"" + dashes + "\"");
}

std::string fill_of(std::size_t series) { return "fill=\"" + color_of(series) + "\" fill-opacity=\"0.75\""; }

// Upper edges of the stacked areas, each with the index of its series. Non-finite values count as 0.
std::vector<std::pair<std::size_t, std::vector<double>>> stacked(const ChartPanel& panel) {
  std::vector<std::pair<std::size_t, std::vector<double>>> edges;
  for (std::size_t s = 0; s < panel.series.size(); ++s) {
    if (panel.series[s].style != Style::area) continue;
    std::vector<double> edge = panel.series[s].y;
    for (double& value : edge) value = is_drawable(value) ? value : 0;
    for (std::size_t i = 0; i < edge.size(); ++i) edge[i] += edges.empty() ? 0 : edges.back().second[i];
    edges.emplace_back(s, std::move(edge));
  }
  return edges;
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    if (is_drawable(value)) low = std::min(low, value), high = std::max(high, value);
  }
};

std::pair<double, double> x_range(const ChartPanel& panel) {
  Range range;
  for (const auto& series : panel.series)
    std::for_each(series.x.begin(), series.x.end(), [&](double x) { range.add(x); });
  for (const auto& band : panel.bands) range.add(band.begin), range.add(band.end);
  for (const double tick : panel.x_ticks) range.add(tick);
  if (!(range.low <= range.high)) return {0, 1};
  return {range.low, range.high > range.low ? range.high : range.low + std::max(1.0, 1e-9 * std::abs(range.low))};
}

Range drawn_range(const ChartPanel& panel, bool positive) {
  Range range;
  const auto add = [&](double y) { !positive || y > 0 ? range.add(y) : void(); };
  for (const auto& series : panel.series) {
    if (series.style != Style::area) std::for_each(series.y.begin(), series.y.end(), add);
  }
  const auto areas = stacked(panel);
  if (!areas.empty()) add(0), std::for_each(areas.back().second.begin(), areas.back().second.end(), add);
  for (const auto& limit : panel.limits) add(limit.y);
  return range;
}

Scale y_scale(const ChartPanel& panel, std::pair<double, double> pixels) {
  Range range = drawn_range(panel, panel.log_y);
  const bool empty = !(range.low <= range.high);
  if (panel.log_y) return Scale::logarithmic(empty ? 0.1 : range.low, empty ? 1 : range.high, pixels);
  if (empty) range.low = range.high = 0;
  // For a flat curve the margin is so large that doubles of that magnitude distinguish the edges.
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  const double margin = std::max({0.06 * (range.high - range.low), 1e-6, 1e-9 * size});
  const double low = std::isnan(panel.y_low) ? range.low - margin : panel.y_low;
  const double high = std::isnan(panel.y_high) ? range.high + margin : panel.y_high;
  return Scale({low, high > low ? high : low + margin}, pixels);
}

std::vector<Scale::Tick> x_ticks(const ChartPanel& panel, const Scale& scale) {
  std::vector<Scale::Tick> given;
  for (const double value : panel.x_ticks) given.push_back({value, tick_label(value)});
  return given.empty() ? scale.ticks(8) : given;
}

// Width right of the plot: the notes, and half of a tick label that is centered on the edge.
double notes_width(const ChartPanel& panel) {
  double widest = 0;
  for (const auto& tick : x_ticks(panel, Scale(x_range(panel), {0, 1})))
    widest = std::max(widest, text_width(tick.label, kFont) / 2 - kMargin + 2);
  for (const auto& note : panel.notes) widest = std::max(widest, text_width(note, kFont) + kGap);
  return widest + kMargin;
}

// Position of a legend entry: series, x from the left edge of the plot, row.
struct Entry {
  std::size_t series;
  double x;
  int row;
};

double swatch_width(const ChartSeries& series) { return series.style == Style::area ? 12 : 34; }
double entry_width(const ChartSeries& series) { return swatch_width(series) + kMark + text_width(series.name, kFont); }

std::vector<Entry> legend_of(const ChartPanel& panel, double width) {
  std::vector<Entry> entries;
  double x = 0;
  int row = 0;
  for (std::size_t s = 0; s < panel.series.size(); ++s) {
    if (panel.series[s].name.empty()) continue;
    const double wide = entry_width(panel.series[s]);
    if (x > 0 && x + wide > width) x = 0, ++row;
    entries.push_back({s, x, row});
    x += wide + kGap;
  }
  return entries;
}

bool labels_bands(const ChartPanel& panel) {
  return std::any_of(panel.bands.begin(), panel.bands.end(), [](const auto& band) { return !band.label.empty(); });
}

}  // namespace

double PanelDrawing::axis_width(const ChartPanel& panel) {
  double widest = 0;
  for (const auto& tick : y_scale(panel, {1, 0}).ticks(6)) widest = std::max(widest, text_width(tick.label, kFont));
  return kMargin + kRow + widest + kMark;
}

double PanelDrawing::header_height(const ChartPanel& panel, double width) {
  const auto legend = legend_of(panel, width - kMargin);
  const double rows = legend.empty() ? 0 : legend.back().row + 1;
  return (panel.title.empty() ? 0 : kNameRow) + kRow * rows + (labels_bands(panel) ? kRow : 0) + kMark;
}

double PanelDrawing::min_width(const ChartPanel& panel) {
  double widest = std::max(1.1 * text_width(panel.title, kFont), 240 + notes_width(panel));
  for (const auto& series : panel.series) widest = std::max(widest, entry_width(series));
  return widest + kMargin;
}

double PanelDrawing::height(const ChartPanel& panel, double header) { return header + panel.height + kBelow; }

PanelDrawing::PanelDrawing(const ChartPanel& panel, const PanelPosition& place)
    : panel_(panel),
      position_(place),
      left_(place.left + place.axis),
      right_(place.left + place.width - notes_width(panel)),
      top_(place.top + place.header),
      bottom_(top_ + panel.height),
      x_(x_range(panel), {left_, right_}),
      y_(y_scale(panel, {bottom_, top_})) {}

void PanelDrawing::draw(SvgCanvas& canvas) const {
  draw_title(canvas);
  draw_legend(canvas);
  draw_bands(canvas);
  draw_areas(canvas);
  draw_axes(canvas);
  for (std::size_t s = 0; s < panel_.series.size(); ++s) draw_line(canvas, s);
  draw_limits(canvas);
  draw_notes(canvas);
}

void PanelDrawing::draw_title(SvgCanvas& canvas) const {
  if (!panel_.title.empty())
    canvas.text(left_, position_.top + kFont, Anchor::start, panel_.title, "font-weight=\"bold\"");
}

void PanelDrawing::draw_legend(SvgCanvas& canvas) const {
  const double top = position_.top + (panel_.title.empty() ? 0 : kNameRow) + kRow / 2;
  for (const auto& entry : legend_of(panel_, position_.width - position_.axis - kMargin)) {
    draw_entry(canvas, entry.series, left_ + entry.x, top + kRow * entry.row);
  }
}

void PanelDrawing::draw_entry(SvgCanvas& canvas, std::size_t s, double x, double y) const {
  const ChartSeries& series = panel_.series[s];
  const double swatch = swatch_width(series);
  if (series.style == Style::area) {
    canvas.rect(x, y - 6, swatch, 12, fill_of(s));
  } else {
    canvas.line(x, y, x + swatch, y, stroke_of(s, series.width));
  }
  if (series.style == Style::points) canvas.circle(x + swatch / 2, y, 3, fill_of(s));
  canvas.text(x + swatch + kMark, y + 4, Anchor::start, series.name);
}

void PanelDrawing::draw_bands(SvgCanvas& canvas) const {
  for (const auto& band : panel_.bands) {
    const double begin = x_(band.begin), end = x_(band.end);
    canvas.rect(begin, top_, end - begin, bottom_ - top_, "fill=\"#f3e3c8\" fill-opacity=\"0.35\"");
    for (const double x : {begin, end}) canvas.line(x, top_, x, bottom_, "stroke=\"#555\" stroke-dasharray=\"3 3\"");
    if (text_width(band.label, kFont) <= end - begin) {
      canvas.text((begin + end) / 2, top_ - 6, Anchor::middle, band.label);
    }
  }
}

void PanelDrawing::draw_axes(SvgCanvas& canvas) const {
  for (const auto& tick : y_.ticks(6)) {
    canvas.line(left_, y_(tick.value), right_, y_(tick.value), kGrid);
    canvas.text(left_ - kMark, y_(tick.value) + 4, Anchor::end, tick.label);
  }
  for (const auto& tick : x_ticks(panel_, x_)) {
    canvas.line(x_(tick.value), bottom_, x_(tick.value), bottom_ + 5, kFrame);
    canvas.text(x_(tick.value), bottom_ + 19, Anchor::middle, tick.label);
  }
  canvas.line(left_, bottom_, right_, bottom_, kFrame);
  canvas.line(left_, top_, left_, bottom_, kFrame);
  canvas.text((left_ + right_) / 2, bottom_ + 40, Anchor::middle, panel_.x_label);
  const double x = position_.left + kMargin, y = (top_ + bottom_) / 2;
  canvas.text(x, y, Anchor::middle, panel_.y_label,
              "transform=\"rotate(-90 " + tick_label(x) + " " + tick_label(y) + ")\"");
}

void PanelDrawing::draw_areas(SvgCanvas& canvas) const {
  std::vector<double> below;
  for (const auto& [s, edge] : stacked(panel_)) {
    const auto& x = panel_.series[s].x;
    below.resize(edge.size(), 0);
    SvgCanvas::Points points;
    for (std::size_t i = 0; i < edge.size(); ++i) points.emplace_back(x_(x[i]), y_(edge[i]));
    for (std::size_t i = edge.size(); i-- > 0;) points.emplace_back(x_(x[i]), y_(below[i]));
    canvas.polygon(points, fill_of(s));
    below = edge;
  }
}

void PanelDrawing::draw_line(SvgCanvas& canvas, std::size_t s) const {
  const ChartSeries& series = panel_.series[s];
  if (series.style == Style::area) return;
  SvgCanvas::Points points;
  for (std::size_t i = 0; i < series.y.size(); ++i) {
    if (!is_drawable(series.x[i]) || !is_drawable(series.y[i])) continue;
    const std::pair point(x_(series.x[i]), y_(series.y[i]));
    if (series.style == Style::steps && !points.empty()) points.emplace_back(point.first, points.back().second);
    points.push_back(point);
  }
  canvas.polyline(points, stroke_of(s, series.width));
  if (series.style != Style::points) return;
  for (const auto& [x, y] : points) canvas.circle(x, y, 3, fill_of(s));
}

void PanelDrawing::draw_limits(SvgCanvas& canvas) const {
  for (const auto& limit : panel_.limits) {
    canvas.line(left_, y_(limit.y), right_, y_(limit.y), "stroke=\"#c0392b\" stroke-dasharray=\"4 4\"");
    canvas.text(right_, y_(limit.y) - 6, Anchor::end, limit.label, "fill=\"#c0392b\"");
  }
}

void PanelDrawing::draw_notes(SvgCanvas& canvas) const {
  double y = top_ + kFont;
  for (const auto& note : panel_.notes) {
    if (y > bottom_) return;
    canvas.text(right_ + kGap, y, Anchor::start, note);
    y += kRow - 2;
  }
}

}  // namespace dtensor
