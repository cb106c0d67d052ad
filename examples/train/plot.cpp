// The picture: loss curves over steps as SVG, and below them how far they lie apart.
#include "plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "output.h"

namespace train {

std::vector<double> nice_ticks(double low, double high, int count) {
  if (!std::isfinite(low) || !std::isfinite(high)) return {};
  // Marks closer than neighbouring doubles would be one mark, counted for ever.
  const double closest = 8 * std::numeric_limits<double>::epsilon() * std::max(std::abs(low), std::abs(high));
  const double rough = std::max({high / count - low / count, 1e-12, closest});
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step); i * step - high <= 1e-9 * step; ++i) ticks.push_back(i * step);
  return ticks;
}

namespace {

constexpr double kWidth = 860, kLeft = 78, kRight = 24;
constexpr std::array<const char*, 4> kColours = {"#9ec5e8", "#c0392b", "#2e7d4f", "#7d3c98"};

// Maps data to pixels of one panel, y upwards.
struct Panel {
  double top, height, x_low, x_high, y_low, y_high;
  double x(double value) const { return kLeft + (value - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight); }
  double y(double value) const { return top + height - (value - y_low) / (y_high - y_low) * height; }
};

void text(std::string& svg, double x, double y, const char* anchor, const std::string& what, const char* extra = "") {
  std::string escaped;
  for (const char c : what) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, extra, escaped);
}

void line(std::string& svg, double x1, double y1, double x2, double y2, const char* style) {
  svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

constexpr const char* kGrid = "stroke=\"#e4e4e4\"";
constexpr const char* kFrame = "stroke=\"#555\"";

void axes(std::string& svg, const Panel& panel, const std::vector<double>& y_ticks, bool powers,
          const std::string& y_name) {
  for (const double tick : y_ticks) {
    line(svg, kLeft, panel.y(tick), kWidth - kRight, panel.y(tick), kGrid);
    text(svg, kLeft - 8, panel.y(tick) + 4, "end", powers ? fmt::format("1e{:.0f}", tick) : fmt::format("{:g}", tick));
  }
  const double bottom = panel.top + panel.height;
  for (const double tick : nice_ticks(panel.x_low, panel.x_high, 8)) {
    line(svg, panel.x(tick), bottom, panel.x(tick), bottom + 5, kFrame);
    text(svg, panel.x(tick), bottom + 19, "middle", fmt::format("{:g}", tick));
  }
  line(svg, kLeft, bottom, kWidth - kRight, bottom, kFrame);
  line(svg, kLeft, panel.top, kLeft, bottom, kFrame);
  const double middle = panel.top + panel.height / 2;
  text(svg, 20, middle, "middle", y_name, fmt::format("transform=\"rotate(-90 20 {:.1f})\"", middle).c_str());
}

// What is not finite has no place in a panel, nor has what leaves no room for an axis beyond it.
bool has_place(double value) { return std::abs(value) < 1e300; }

void polyline(std::string& svg, const Panel& panel, const std::vector<double>& values, const std::string& style) {
  svg += fmt::format("<polyline fill=\"none\" {} points=\"", style);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!has_place(values[i])) continue;
    svg += fmt::format("{:.1f},{:.1f} ", panel.x(panel.x_low + static_cast<double>(i)), panel.y(values[i]));
  }
  svg += "\"/>\n";
}

// The first curve is broad and pale, so that one that coincides with it shows on top.
std::string curve_style(std::size_t index) {
  return fmt::format("stroke=\"{}\" stroke-width=\"{}\" {}", kColours[index % kColours.size()], index == 0 ? 7.0 : 1.8,
                     index == 0 ? "stroke-linecap=\"round\"" : "stroke-dasharray=\"7 3\"");
}

// As wide as its longest name, at the right edge, on a ground of its own so that curves do not run through the words.
void legend(std::string& svg, const Picture& picture, double top) {
  constexpr double kLetter = 7.6, kLine = 50, kRow = 22;  // at this font's size, with room to spare
  std::size_t longest = 0;
  for (const Curve& curve : picture.curves) longest = std::max(longest, curve.name.size());
  const double width = kLine + kLetter * static_cast<double>(longest) + 12;
  const double left = std::max(kLeft + 8, kWidth - kRight - width);
  svg += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#fff\" fill-opacity=\"0.85\"/>\n",
      left - 6, top + 4, kWidth - kRight - left + 6, kRow * static_cast<double>(picture.curves.size()) + 6);
  for (std::size_t i = 0; i < picture.curves.size(); ++i) {
    const double y = top + 18 + kRow * static_cast<double>(i);
    line(svg, left, y, left + kLine - 10, y, curve_style(i).c_str());
    text(svg, left + kLine, y + 4, "start", picture.curves[i].name);
  }
}

std::pair<double, double> steps_of(const Picture& picture) {
  const auto first = static_cast<double>(picture.first_step);
  return {first, first + std::max(static_cast<double>(picture.curves.front().values.size()) - 1, 1.0)};
}

void loss_panel(std::string& svg, const Picture& picture, double top, double height) {
  double low = INFINITY, high = -INFINITY;
  for (const Curve& curve : picture.curves) {
    for (const double value : curve.values) {
      if (!has_place(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (!(low <= high)) low = high = 0;
  // Of a flat curve: so much that doubles of its size tell the edges apart.
  const double margin = std::max({0.06 * (high - low), 1e-6, 1e-9 * std::max(std::abs(low), std::abs(high))});
  const auto [first, last] = steps_of(picture);
  const Panel panel{top, height, first, last, low - margin, high + margin};
  axes(svg, panel, nice_ticks(panel.y_low, panel.y_high, 6), false, picture.y_name);
  for (std::size_t i = 0; i < picture.curves.size(); ++i) {
    polyline(svg, panel, picture.curves[i].values, curve_style(i));
  }
  legend(svg, picture, top);
}

// Logarithmic; equal values are drawn on the floor, one decade below the lowest mark.
void difference_panel(std::string& svg, const Picture& picture, double top, double height) {
  double low = std::log10(picture.bound) - 1;
  double high = std::log10(picture.bound) + 1;
  for (const double value : picture.difference) {
    if (value > 0) low = std::min(low, std::floor(std::log10(value)));
    if (value > 0 && std::isfinite(value)) high = std::max(high, std::ceil(std::log10(value)));
  }
  std::vector<double> logs;
  for (const double value : picture.difference) logs.push_back(value == 0 ? low - 1 : std::log10(value));
  const auto [first, last] = steps_of(picture);
  const Panel panel{top, height, first, last, low - 1, high};
  axes(svg, panel, nice_ticks(low, high, 5), true, "relative difference");
  text(svg, kLeft - 8, panel.y(low - 1) + 4, "end", "equal");
  polyline(svg, panel, logs, "stroke=\"#555\" stroke-width=\"1.3\"");
  const double y = panel.y(std::log10(picture.bound));
  line(svg, kLeft, y, kWidth - kRight, y, "stroke=\"#c0392b\" stroke-dasharray=\"4 4\"");
  text(svg, kWidth - kRight, y - 6, "end", fmt::format("bound {:.0e}", picture.bound), "fill=\"#c0392b\"");
}

}  // namespace

std::string to_svg(const Picture& picture) {
  const bool two = !picture.difference.empty();
  const double height = two ? 580 : 400;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, height);
  text(svg, kWidth / 2, 26, "middle", picture.title, "font-size=\"16\"");
  loss_panel(svg, picture, 44, 290);
  if (two) difference_panel(svg, picture, 384, 130);
  text(svg, (kLeft + kWidth - kRight) / 2, height - 18, "middle", "step");
  return svg + "</svg>\n";
}

void write_svg(const std::string& path, const Picture& picture) { write_file(path, to_svg(picture)); }

}  // namespace train
