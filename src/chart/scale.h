// From values to pixels, and where an axis has its marks.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

// Marks at 1, 2 or 5 times a power of ten, about `count` of them, within [low, high]. None where either is not finite.
std::vector<double> round_ticks(double low, double high, int count);

// What is not finite has no place on an axis, nor has what leaves no room for an axis beyond it.
inline bool is_drawable(double value) { return std::abs(value) < 1e300; }

// One axis: values [low, high] lie at pixels [from, to]. On a logarithmic one, 0 lies at `from`.
class Scale {
 public:
  Scale(std::pair<double, double> values, std::pair<double, double> pixels) : values_(values), pixels_(pixels) {}
  // `smallest` and `largest` are positive. The decade below `smallest` is that of 0.
  static Scale logarithmic(double smallest, double largest, std::pair<double, double> pixels);

  double operator()(double value) const;
  struct Tick {
    double value;
    std::string label;
  };
  std::vector<Tick> ticks(int count) const;

 private:
  std::vector<Tick> decades(int count) const;

  std::pair<double, double> values_, pixels_;  // of a logarithmic axis: exponents
  bool log_ = false;
};

std::string tick_label(double value);

}  // namespace dtensor
