// Samples are differences: allocations of this thread since the start of the step, minus the known kinds.
#include "train/plots/memory_plot.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "chart/chart.h"
#include "dtensor/tensor.h"
#include "train/model/bytes.h"
#include "train/output/progress.h"

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
      timeline_(std::int64_t{1} << 40),
      listener_([this](const dtensor::Event& event) { add(event.phase); }, {dtensor::Event::Kind::op}) {
  adding_ = true;
  for (const auto& [name, slot] : parameters) {
    parameters_.push_back(*slot);
    parameter_bytes_ += local_bytes(*slot);
  }
  gradients_before_ = gradient_bytes(parameters_);
  adding_ = false;
  begin_ = std::chrono::steady_clock::now();
  add(dtensor::Phase::forward);  // The plot begins with the step, not with its first operator.
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
  std::int64_t MemorySample::*bytes;
};
constexpr std::array<Layer, 5> kLayers = {{{"parameters", &MemorySample::parameters},
                                           {"optimizer", &MemorySample::optimizer},
                                           {"gradients", &MemorySample::gradients},
                                           {"gathered units", &MemorySample::gathered},
                                           {"activations and the rest", &MemorySample::rest}}};

std::int64_t total(const MemorySample& s) {
  std::int64_t bytes = 0;
  for (const auto& layer : kLayers) bytes += s.*layer.bytes;
  return bytes;
}

double milliseconds(const MemorySample& s) { return s.seconds * 1e3; }

MemorySample peak_of(const std::vector<MemorySample>& samples) {
  if (samples.empty()) return {};
  return *std::max_element(samples.begin(), samples.end(),
                           [](const auto& a, const auto& b) { return total(a) < total(b); });
}

// Forward, backward and, after the last backward, the optimizer.
std::vector<dtensor::ChartBand> phases(const std::vector<MemorySample>& samples) {
  std::vector<dtensor::ChartBand> bands;
  if (samples.empty()) return bands;
  const auto is_backward = [](const MemorySample& s) { return s.phase == dtensor::Phase::backward; };
  const auto first = std::find_if(samples.begin(), samples.end(), is_backward);
  const double end = milliseconds(samples.back());
  if (first == samples.end()) return {{0, end, "forward"}};
  const auto last = std::find_if(samples.rbegin(), samples.rend(), is_backward);
  bands.push_back({0, milliseconds(*first), "forward"});
  bands.push_back({milliseconds(*first), milliseconds(*last), "backward"});
  bands.push_back({milliseconds(*last), end, "optimizer"});
  std::erase_if(bands, [](const auto& band) { return band.end <= band.begin; });
  return bands;
}

dtensor::ChartPanel panel_of(const MemoryPanel& memory, std::int64_t top) {
  const MemorySample peak = peak_of(memory.samples);
  dtensor::ChartPanel panel{
      .title = fmt::format("{}, peak {}, of which:", memory.title, bytes_text(static_cast<double>(total(peak)))),
      .x_label = "time of one step, ms",
      .y_label = "memory, MB",
      .bands = phases(memory.samples),
      .y_low = 0,
      .y_high = 1.05e-6 * static_cast<double>(std::max<std::int64_t>(top, 1)),
      .height = 220};
  for (const auto& layer : kLayers) {
    dtensor::ChartSeries area{.style = dtensor::ChartSeries::Style::area};
    area.name = fmt::format("{}: {}", layer.name, bytes_text(static_cast<double>(peak.*layer.bytes)));
    for (const auto& s : memory.samples) {
      area.x.push_back(milliseconds(s));
      area.y.push_back(static_cast<double>(s.*layer.bytes) / 1e6);
    }
    panel.series.push_back(std::move(area));
  }
  return panel;
}

}  // namespace

std::string memory_svg(const std::vector<MemoryPanel>& panels) {
  std::int64_t top = 0;
  for (const auto& panel : panels) top = std::max(top, total(peak_of(panel.samples)));
  dtensor::Chart chart{.columns = 2, .width = 620};
  for (const auto& panel : panels) chart.panels.push_back(panel_of(panel, top));
  return dtensor::to_svg(chart);
}

}  // namespace train
