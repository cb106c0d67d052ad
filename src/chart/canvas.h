// Elements of an SVG document. Text is escaped.
#pragma once

#include <string>
#include <vector>

namespace dtensor {

enum class Anchor { start, middle, end };

// Upper bound of the width of a text in pixels, for common sans-serif fonts.
double text_width(const std::string& text, double font_size);

class SvgCanvas {
 public:
  explicit SvgCanvas(double font_size = 13) : font_size_(font_size) {}

  void text(double x, double y, Anchor anchor, const std::string& text, const std::string& attributes = "");
  void line(double x1, double y1, double x2, double y2, const std::string& attributes);
  // Viewers show `tooltip` under the pointer.
  void rect(double x, double y, double width, double height, const std::string& attributes,
            const std::string& tooltip = "");
  void circle(double x, double y, double radius, const std::string& attributes);
  using Points = std::vector<std::pair<double, double>>;
  void polyline(const Points& points, const std::string& attributes);
  void polygon(const Points& points, const std::string& attributes);

  double font_size() const { return font_size_; }
  // The document, with a white background.
  std::string str(double width, double height) const;

 private:
  double font_size_;
  std::string elements_;
};

}  // namespace dtensor
