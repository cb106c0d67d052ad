// Two panels with one scale of lengths, in the look of the other figures.
#include "picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "train/plot.h"

namespace long_sequence {
namespace {

constexpr double kWidth = 900, kHeight = 360, kTop = 64, kPlot = 230, kPanel = 350;
constexpr std::array<const char*, 3> kColours = {"#4c78a8", "#c0392b", "#2e7d4f"};

void text(std::string& svg, double x, double y, const char* anchor, const std::string& what) {
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, what);
}

void line(std::string& svg, double x1, double y1, double x2, double y2, const std::string& style) {
  svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

// Lengths to the right, from 0 to the longest; values upwards, from 0.
struct Panel {
  double left, longest, high;
  double x(double tokens) const { return left + tokens / longest * kPanel; }
  double y(double value) const { return kTop + kPlot * (1 - value / high); }
};

void draw_axes(std::string& svg, const Panel& panel, const std::vector<std::int64_t>& tokens, const std::string& name) {
  const double bottom = kTop + kPlot;
  for (const double tick : train::nice_ticks(0, panel.high, 6)) {
    line(svg, panel.left, panel.y(tick), panel.left + kPanel, panel.y(tick), "stroke=\"#e4e4e4\"");
    text(svg, panel.left - 8, panel.y(tick) + 4, "end", fmt::format("{:g}", tick));
  }
  for (const auto length : tokens) {
    const double x = panel.x(static_cast<double>(length));
    line(svg, x, bottom, x, bottom + 5, "stroke=\"#555\"");
    text(svg, x, bottom + 19, "middle", std::to_string(length));
  }
  line(svg, panel.left, bottom, panel.left + kPanel, bottom, "stroke=\"#555\"");
  line(svg, panel.left, kTop, panel.left, bottom, "stroke=\"#555\"");
  text(svg, panel.left, kTop - 12, "start", name);
  text(svg, panel.left + kPanel / 2, bottom + 40, "middle", "tokens of the sequence");
}

using Value = double (*)(const Cost&);

void draw_panel(std::string& svg, double left, const std::string& name, const std::vector<std::int64_t>& tokens,
                const std::vector<Line>& lines, Value value) {
  Panel panel{left, static_cast<double>(tokens.back()), 1e-12};
  for (const Line& one : lines) {
    for (const Cost& cost : one.costs) panel.high = std::max(panel.high, 1.05 * value(cost));
  }
  draw_axes(svg, panel, tokens, name);
  for (std::size_t l = 0; l < lines.size(); ++l) {
    const char* colour = kColours[l % kColours.size()];
    std::string points, marks;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const double x = panel.x(static_cast<double>(tokens[i])), y = panel.y(value(lines[l].costs[i]));
      points += fmt::format("{:.1f},{:.1f} ", x, y);
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
    }
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"{}\"/>\n{}", colour, points,
                       marks);
    const double y = kTop + 16 + 20 * static_cast<double>(l);
    line(svg, left + 14, y, left + 44, y, fmt::format("stroke=\"{}\" stroke-width=\"1.8\"", colour));
    text(svg, left + 52, y + 4, "start", fmt::format("{} rank{}", lines[l].ranks, lines[l].ranks == 1 ? "" : "s"));
  }
}

}  // namespace

std::string costs_svg(const std::vector<std::int64_t>& tokens, const std::vector<Line>& lines) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"26\" text-anchor=\"middle\" font-size=\"16\">{}</text>\n", kWidth / 2,
                     "forward and backward of two blocks, the sequence split over ranks");
  draw_panel(svg, 64, "MiB at most, of a rank", tokens, lines, [](const Cost& c) { return c.bytes / 1048576; });
  draw_panel(svg, 64 + kPanel + 100, "seconds of a processor, of the busiest rank", tokens, lines,
             [](const Cost& c) { return c.processor; });
  return svg + "</svg>\n";
}

}  // namespace long_sequence
