// Rounds ticks, and maps values to pixels.
#include "chart/scale.h"

#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace dtensor {

std::vector<double> round_ticks(double low, double high, int count) {
  if (!std::isfinite(low) || !std::isfinite(high)) return {};
  // Ticks closer than neighboring doubles would be equal, and the loop below would not end.
  const double closest = 8 * std::numeric_limits<double>::epsilon() * std::max(std::abs(low), std::abs(high));
  const double rough = std::max({high / count - low / count, 1e-12, closest});
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step); i * step - high <= 1e-9 * step; ++i) ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

std::string tick_label(double value) { return fmt::format("{:.10g}", value); }

Scale Scale::logarithmic(double smallest, double largest, std::pair<double, double> pixels) {
  const double low = std::floor(std::log10(smallest)), high = std::max(std::ceil(std::log10(largest)), low + 1);
  Scale scale({low - 1, high}, pixels);
  scale.log_ = true;
  return scale;
}

double Scale::operator()(double value) const {
  const double at = !log_ ? value : value > 0 ? std::log10(value) : values_.first;
  return pixels_.first + (at - values_.first) / (values_.second - values_.first) * (pixels_.second - pixels_.first);
}

std::vector<Scale::Tick> Scale::ticks(int count) const {
  if (log_) return decades(count);
  std::vector<Tick> ticks;
  for (const double value : round_ticks(values_.first, values_.second, count)) {
    ticks.push_back({value, tick_label(value)});
  }
  return ticks;
}

std::vector<Scale::Tick> Scale::decades(int count) const {
  std::vector<Tick> ticks{{0, "0"}};
  const double stride = std::max(1.0, std::ceil((values_.second - values_.first) / count));
  for (double e = values_.second; e > values_.first; e -= stride) {
    ticks.push_back({std::pow(10.0, e), fmt::format("1e{:.0f}", e)});
  }
  return ticks;
}

}  // namespace dtensor
