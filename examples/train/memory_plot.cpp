// Samples by subtraction: what this thread holds beyond the start of the step, less what is known by name.
#include "memory_plot.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "dtensor/tensor.h"
#include "progress.h"

namespace train {
namespace {

std::int64_t local_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return static_cast<std::int64_t>(
      (dtensor::is_dtensor(tensor) ? dtensor::DTensor(tensor.detach()).to_local() : tensor).nbytes());
}

std::int64_t gradient_bytes(const std::vector<at::Tensor>& parameters) {
  std::int64_t bytes = 0;
  for (const auto& p : parameters) bytes += local_bytes(p.grad());
  return bytes;
}

}  // namespace

MemoryRecord::MemoryRecord(const dtensor::NamedTensors& parameters, const std::vector<dtensor::FsdpUnit>& units,
                           std::int64_t optimizer)
    : optimizer_(optimizer),
      begin_(std::chrono::steady_clock::now()),
      timeline_(std::int64_t{1} << 40),
      listener_([this](const dtensor::Event&) { add(); }, {dtensor::Event::Kind::op}) {
  adding_ = true;
  for (const auto& [name, slot] : parameters) {
    parameters_.push_back(*slot);
    parameter_bytes_ += local_bytes(*slot);
  }
  if (!units.empty()) unit_ = units.front();
  gradients_before_ = gradient_bytes(parameters_);
  adding_ = false;
}

void MemoryRecord::add() {
  if (std::exchange(adding_, true)) return;
  MemorySample s{.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(),
                 .parameters = parameter_bytes_,
                 .optimizer = optimizer_};
  const auto stats = unit_ ? unit_->stats() : dtensor::FsdpStats();
  const auto reduced = gradient_bytes(parameters_);
  s.gradients = reduced + stats.unreduced_bytes;
  s.gathered = stats.gathered_bytes;
  const auto named = reduced - gradients_before_ + stats.unreduced_bytes + stats.gathered_bytes;
  s.rest = std::max<std::int64_t>(0, timeline_.live() - named);
  samples_.push_back(s);
  adding_ = false;
}

namespace {

struct Layer {
  const char* name;
  const char* colour;
  std::int64_t MemorySample::*bytes;
};
constexpr std::array<Layer, 5> kLayers = {{{"parameters", "#4c78a8", &MemorySample::parameters},
                                           {"optimizer", "#72b7b2", &MemorySample::optimizer},
                                           {"gradients", "#e45756", &MemorySample::gradients},
                                           {"gathered units", "#f2a541", &MemorySample::gathered},
                                           {"activations and the rest", "#b5b5b5", &MemorySample::rest}}};

std::int64_t total(const MemorySample& s) {
  std::int64_t bytes = 0;
  for (const auto& layer : kLayers) bytes += s.*layer.bytes;
  return bytes;
}

}  // namespace

std::string memory_svg(const std::string& title, const std::vector<MemorySample>& samples) {
  constexpr double kWidth = 860, kLeft = 20, kTop = 40, kPlot = 260, kRight = 240;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"340\" font-family=\"sans-serif\" "
      "font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{:.0f}\" y=\"22\">{}</text>\n",
      kWidth, kLeft, title);
  if (samples.empty()) return svg + "</svg>\n";
  const auto peak = *std::max_element(samples.begin(), samples.end(),
                                      [](const auto& a, const auto& b) { return total(a) < total(b); });
  const double end = std::max(samples.back().seconds, 1e-9),
               high = std::max<double>(1, static_cast<double>(total(peak)));
  const auto x = [&](double seconds) { return kLeft + seconds / end * (kWidth - kLeft - kRight); };
  const auto y = [&](double bytes) { return kTop + kPlot * (1 - bytes / high); };
  std::vector<double> below(samples.size(), 0);
  double key = kTop + 20;
  for (const auto& layer : kLayers) {
    std::string upper, lower;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      lower = fmt::format("{:.1f},{:.1f} ", x(samples[i].seconds), y(below[i])) + lower;
      below[i] += static_cast<double>(samples[i].*layer.bytes);
      upper += fmt::format("{:.1f},{:.1f} ", x(samples[i].seconds), y(below[i]));
    }
    svg += fmt::format("<polygon points=\"{}{}\" fill=\"{}\"/>\n", upper, lower, layer.colour);
    svg += fmt::format(
        "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"10\" height=\"10\" fill=\"{2}\"/><text x=\"{3:.0f}\" "
        "y=\"{4:.0f}\">{5}: {6}</text>\n",
        kWidth - kRight + 12, key - 9, layer.colour, kWidth - kRight + 28, key, layer.name,
        bytes_text(static_cast<double>(peak.*layer.bytes)));
    key += 20;
  }
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">at the highest moment: {}</text>\n", kWidth - kRight + 12,
                     key + 6, bytes_text(static_cast<double>(total(peak))));
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">one step, {:.1f} ms</text>\n</svg>\n", kLeft, kTop + kPlot + 24,
                     end * 1e3);
  return svg;
}

}  // namespace train
