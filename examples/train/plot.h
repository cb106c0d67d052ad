// The picture: loss curves over steps as SVG, and below them how far they lie apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct Curve {
  std::string name;
  std::vector<double> values;  // one a step
};

struct Picture {
  std::string title;
  std::vector<Curve> curves = {};       // of one length; later ones are drawn thinner, above earlier ones
  std::vector<double> difference = {};  // relative, one a step; empty: no lower panel
  double bound = 0;                     // drawn into the lower panel
  std::string y_name = "loss";          // what the curves show
  std::int64_t first_step = 0;          // of the values; of a run that goes on, another
};

std::string to_svg(const Picture& picture);
void write_svg(const std::string& path, const Picture& picture);

// Tick positions at 1, 2 or 5 times a power of ten, about `count` of them, covering no more than [low, high]. None
// where either is not finite.
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace train
