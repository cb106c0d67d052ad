// Samples by subtraction: what this thread holds beyond the start of the step, less what is known by name.
#include "memory_plot.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bytes.h"
#include "dtensor/tensor.h"
#include "plot.h"
#include "progress.h"

namespace train {
namespace {

std::int64_t gradient_bytes(const std::vector<at::Tensor>& parameters) {
  std::int64_t bytes = 0;
  for (const auto& p : parameters) bytes += local_bytes(p.grad());
  return bytes;
}

}  // namespace

MemoryRecord::MemoryRecord(const dtensor::NamedTensors& parameters, std::vector<dtensor::FsdpUnit> counts,
                           std::int64_t optimizer)
    : counts_(std::move(counts)),
      optimizer_(optimizer),
      begin_(std::chrono::steady_clock::now()),
      timeline_(std::int64_t{1} << 40),
      listener_([this](const dtensor::Event& event) { add(event.phase); }, {dtensor::Event::Kind::op}) {
  adding_ = true;
  for (const auto& [name, slot] : parameters) {
    parameters_.push_back(*slot);
    parameter_bytes_ += local_bytes(*slot);
  }
  gradients_before_ = gradient_bytes(parameters_);
  adding_ = false;
}

void MemoryRecord::add(dtensor::Phase phase) {
  if (std::exchange(adding_, true)) return;
  MemorySample s{.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(),
                 .phase = phase,
                 .parameters = parameter_bytes_,
                 .optimizer = optimizer_};
  dtensor::FsdpStats stats;
  for (const auto& unit : counts_) {
    stats.gathered_bytes += unit.stats().gathered_bytes;
    stats.unreduced_bytes += unit.stats().unreduced_bytes;
  }
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

constexpr double kWidth = 900, kHeight = 350, kLeft = 64, kTop = 56, kPlot = 240, kRight = 250;

struct Axes {
  double end, high;  // seconds, bytes
  double x(double seconds) const { return kLeft + seconds / end * (kWidth - kLeft - kRight); }
  double y(double bytes) const { return kTop + kPlot * (1 - bytes / high); }
};

void text(std::string& svg, double x, double y, const char* anchor, const std::string& what) {
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, what);
}

// The lines lie above the layers: they are read through them.
void draw_axes(std::string& svg, const Axes& axes) {
  const double right = kWidth - kRight, bottom = kTop + kPlot;
  const auto line = [&](double x1, double y1, double x2, double y2, const char* style) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
  };
  for (const double mb : nice_ticks(0, axes.high / 1e6, 5)) {
    line(kLeft, axes.y(mb * 1e6), right, axes.y(mb * 1e6), "stroke=\"#000\" stroke-opacity=\"0.15\"");
    text(svg, kLeft - 6, axes.y(mb * 1e6) + 4, "end", fmt::format("{:g}", mb));
  }
  for (const double ms : nice_ticks(0, axes.end * 1e3, 7)) {
    line(axes.x(ms / 1e3), bottom, axes.x(ms / 1e3), bottom + 4, "stroke=\"#555\"");
    text(svg, axes.x(ms / 1e3), bottom + 18, "middle", fmt::format("{:g}", ms));
  }
  line(kLeft, bottom, right, bottom, "stroke=\"#555\"");
  line(kLeft, kTop, kLeft, bottom, "stroke=\"#555\"");
  text(svg, kLeft - 6, kTop - 8, "end", "MB");
  text(svg, (kLeft + right) / 2, bottom + 36, "middle", "ms of one step");
}

// Forward, backward and, after the last backward, the optimizer, each between two lines.
void draw_phases(std::string& svg, const Axes& axes, const std::vector<MemorySample>& samples) {
  std::size_t first = samples.size(), last = samples.size();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].phase != dtensor::Phase::backward) continue;
    first = std::min(first, i);
    last = i;
  }
  const auto phase = [&](const char* name, double from, double to) {
    if (to <= from) return;
    text(svg, (axes.x(from) + axes.x(to)) / 2, kTop - 8, "middle", name);
    svg += fmt::format("<path d=\"M{0:.1f},{1}V{2}M{3:.1f},{1}V{2}\" stroke=\"#000\" stroke-dasharray=\"3 3\"/>\n",
                       axes.x(from), kTop, kTop + kPlot, axes.x(to));
  };
  if (first == samples.size()) return phase("forward", 0, axes.end);
  phase("forward", 0, samples[first].seconds);
  phase("backward", samples[first].seconds, samples[last].seconds);
  phase("optimizer", samples[last].seconds, axes.end);
}

void draw_layers(std::string& svg, const Axes& axes, const std::vector<MemorySample>& samples) {
  std::vector<double> below(samples.size(), 0);
  for (const auto& layer : kLayers) {
    std::string upper, lower;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      lower = fmt::format("{:.1f},{:.1f} ", axes.x(samples[i].seconds), axes.y(below[i])) + lower;
      below[i] += static_cast<double>(samples[i].*layer.bytes);
      upper += fmt::format("{:.1f},{:.1f} ", axes.x(samples[i].seconds), axes.y(below[i]));
    }
    svg += fmt::format("<polygon points=\"{}{}\" fill=\"{}\"/>\n", upper, lower, layer.colour);
  }
}

void draw_key(std::string& svg, const MemorySample& peak) {
  double y = kTop + 20;
  for (const auto& layer : kLayers) {
    svg += fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                       kWidth - kRight + 14, y - 9, layer.colour);
    text(svg, kWidth - kRight + 30, y, "start",
         fmt::format("{}: {}", layer.name, bytes_text(static_cast<double>(peak.*layer.bytes))));
    y += 20;
  }
  text(svg, kWidth - kRight + 14, y + 6, "start",
       "at the highest moment: " + bytes_text(static_cast<double>(total(peak))));
}

}  // namespace

std::string memory_svg(const std::string& title, const std::vector<MemorySample>& samples, std::int64_t top) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\"><rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight);
  text(svg, kLeft, 22, "start", title);
  if (samples.empty()) return svg + "</svg>\n";
  const auto peak = *std::max_element(samples.begin(), samples.end(),
                                      [](const auto& a, const auto& b) { return total(a) < total(b); });
  const Axes axes{std::max(samples.back().seconds, 1e-9),
                  std::max<double>(1, static_cast<double>(top > 0 ? top : total(peak)))};
  draw_layers(svg, axes, samples);
  draw_axes(svg, axes);
  draw_phases(svg, axes, samples);
  draw_key(svg, peak);
  return svg + "</svg>\n";
}

std::string memory_svg(const std::vector<MemoryPanel>& panels) {
  constexpr std::size_t kColumns = 2;
  std::int64_t top = 0;
  for (const auto& panel : panels) {
    for (const auto& sample : panel.samples) top = std::max(top, total(sample));
  }
  std::string svg = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"100%\">\n",
                                kColumns * kWidth, static_cast<double>((panels.size() + 1) / kColumns) * kHeight);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    svg +=
        fmt::format("<g transform=\"translate({},{})\">{}</g>\n", static_cast<double>(i % kColumns) * kWidth,
                    static_cast<double>(i / kColumns) * kHeight, memory_svg(panels[i].title, panels[i].samples, top));
  }
  return svg + "</svg>\n";
}

}  // namespace train
