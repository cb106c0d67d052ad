// Writes SVG elements.
#include "chart/canvas.h"

#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace dtensor {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string list_of(const SvgCanvas::Points& points) {
  std::string list;
  for (const auto& [x, y] : points) list += fmt::format("{:.1f},{:.1f} ", x, y);
  return list;
}

const char* name_of(Anchor anchor) {
  return anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
}

// Width relative to the font size. DejaVu Sans is the widest of the common sans-serif fonts.
double width_of(char c) {
  if ((c & 0xC0) == 0x80) return 0;  // a continuation byte of UTF-8
  if (std::string("mwMW%@").find(c) != std::string::npos) return 1.0;
  if (std::string("ijlrtfI.,:;'|!()[] -/").find(c) != std::string::npos) return 0.42;
  return c >= 'A' && c <= 'Z' ? 0.76 : 0.65;
}

}  // namespace

double text_width(const std::string& text, double font_size) {
  double width = 0;
  for (const char c : text) width += width_of(c) * font_size;
  return width;
}

void SvgCanvas::text(double x, double y, Anchor anchor, const std::string& text, const std::string& attributes) {
  elements_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, name_of(anchor),
                           attributes, escaped(text));
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, const std::string& attributes) {
  elements_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, attributes);
}

void SvgCanvas::rect(double x, double y, double width, double height, const std::string& attributes,
                     const std::string& tooltip) {
  const std::string inner = tooltip.empty() ? "" : "<title>" + escaped(tooltip) + "</title>";
  elements_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" {}>{}</rect>\n", x, y,
                           width, height, attributes, inner);
}

void SvgCanvas::circle(double x, double y, double radius, const std::string& attributes) {
  elements_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" {}/>\n", x, y, radius, attributes);
}

void SvgCanvas::polyline(const Points& points, const std::string& attributes) {
  elements_ += fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", attributes, list_of(points));
}

void SvgCanvas::polygon(const Points& points, const std::string& attributes) {
  elements_ += fmt::format("<polygon {} points=\"{}\"/>\n", attributes, list_of(points));
}

std::string SvgCanvas::str(double width, double height) const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"{2:g}\" fill=\"#222\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             width, height, font_size_) +
         elements_ + "</svg>\n";
}

}  // namespace dtensor
