// Conversion of values to pixels, and ticks of an axis.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace dtensor {

// About `count` ticks at multiples of 1, 2 or 5 times a power of ten, within [low, high]. None if a bound is not
// finite.
std::vector<double> round_ticks(double low, double high, int count);

// Excludes non-finite values, and values so large that the range of the axis would overflow.
inline bool is_drawable(double value) { return std::abs(value) < 1e300; }

// One axis: maps values [low, high] to pixels [from, to]. A logarithmic axis maps 0 to `from`.
class Scale {
 public:
  Scale(std::pair<double, double> values, std::pair<double, double> pixels) : values_(values), pixels_(pixels) {}
  // `smallest` and `largest` are positive. The decade below `smallest` represents 0.
  static Scale logarithmic(double smallest, double largest, std::pair<double, double> pixels);

  double operator()(double value) const;
  struct Tick {
    double value;
    std::string label;
  };
  std::vector<Tick> ticks(int count) const;

 private:
  std::vector<Tick> decades(int count) const;

  std::pair<double, double> values_, pixels_;  // exponents if logarithmic
  bool log_ = false;
};

std::string tick_label(double value);

}  // namespace dtensor
