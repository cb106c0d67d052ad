// Curves over the steps of a run as SVG, with a lower panel of their differences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct Curve {
  std::string name;
  std::vector<double> values;  // One for each step.
};

struct Plot {
  std::string title;
  std::vector<Curve> curves = {};       // All of the same length.
  std::vector<double> difference = {};  // Relative, one for each step; empty: no lower panel.
  double bound = 0;                     // Drawn in the lower panel.
  std::string y_name = "loss";          // The quantity of the curves, with its unit.
  std::int64_t first_step = 0;          // Step of the first value; not 0 in a resumed run.
  // The curves are expected to coincide: each is drawn narrower, on top of the one before it.
  bool coincide = false;
};

std::string to_svg(const Plot& plot);
void write_svg(const std::string& path, const Plot& plot);

}  // namespace train
