// Curves over the steps of a run as SVG, and below them how far they lie apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct Curve {
  std::string name;
  std::vector<double> values;  // one a step
};

struct Plot {
  std::string title;
  std::vector<Curve> curves = {};       // of one length
  std::vector<double> difference = {};  // relative, one a step; empty: no lower panel
  double bound = 0;                     // drawn into the lower panel
  std::string y_name = "loss";          // what the curves show, with its unit
  std::int64_t first_step = 0;          // of the values; of a run that goes on, another
  // The curves are expected to coincide: each is drawn narrower, on top of the one before it.
  bool coincide = false;
};

std::string to_svg(const Plot& plot);
void write_svg(const std::string& path, const Plot& plot);

}  // namespace train
