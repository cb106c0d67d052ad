// Listens where ATen's profiler would: allocators report each allocation and release to the thread's profiler state.
#include "dtensor/memory_timeline.h"

#define FMT_HEADER_ONLY
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <optional>

#include "scope/module_scope.h"

namespace dtensor {

struct MemoryTimeline::State : c10::MemoryReportingInfoBase {
  explicit State(std::int64_t r) : resolution(r) {}

  void reportMemoryUsage(void* /*ptr*/, std::int64_t change, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    if (outer != nullptr) outer->reportMemoryUsage(nullptr, change, 0, 0, c10::Device(c10::kCPU));
    live += change;
    const bool highest = live > peak.bytes;
    const bool far = samples.empty() || std::abs(live - samples.back().bytes) >= resolution;
    if (!highest && !far) return;
    const Place place = current_place();
    Sample sample{std::chrono::steady_clock::now(), live, place.module, place.phase};
    if (highest) peak = sample;
    if (far) samples.push_back(std::move(sample));
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t resolution, live = 0;
  Sample peak;
  std::vector<Sample> samples;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  State* outer = nullptr;
  NodeRecorder recorder;
  std::optional<c10::DebugInfoGuard> guard;
};

MemoryTimeline::MemoryTimeline(std::int64_t resolution) : state_(std::make_shared<State>(resolution)) {
  auto* present = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  state_->outer = dynamic_cast<State*>(present);
  TORCH_CHECK(present == nullptr || state_->outer != nullptr, "MemoryTimeline: a profiler runs on this thread");
  state_->peak.when = state_->begin;
  state_->guard.emplace(c10::DebugInfoKind::PROFILER_STATE, state_);
}

// Autograd nodes made meanwhile may carry the state further, so the guard is what ends the listening.
MemoryTimeline::~MemoryTimeline() { state_->guard.reset(); }

std::int64_t MemoryTimeline::live() const { return state_->live; }
const MemoryTimeline::Sample& MemoryTimeline::peak() const { return state_->peak; }
const std::vector<MemoryTimeline::Sample>& MemoryTimeline::samples() const { return state_->samples; }

void MemoryTimeline::reset_peak() {
  const Place place = current_place();
  state_->peak = {std::chrono::steady_clock::now(), state_->live, place.module, place.phase};
}

namespace {

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

std::string MemoryTimeline::csv() const {
  std::string text = "seconds,bytes,phase,module\n";
  for (const Sample& s : samples()) {
    text += fmt::format("{:.6f},{},{},{}\n", seconds(s.when - state_->begin), s.bytes,
                        s.phase == Phase::forward ? "forward" : "backward", s.module);
  }
  return text;
}

// A step curve, the peak marked with its module.
std::string MemoryTimeline::svg(int width, int height) const {
  const auto& all = samples();
  const double end = all.empty() ? 1 : std::max(seconds(all.back().when - state_->begin), 1e-9);
  double low = 0, high = std::max<double>(1, static_cast<double>(peak().bytes));
  for (const Sample& s : all) low = std::min(low, static_cast<double>(s.bytes));
  const auto x = [&](const Sample& s) { return seconds(s.when - state_->begin) / end * (width - 20) + 10; };
  const auto y = [&](double bytes) { return height - 20 - (bytes - low) / (high - low) * (height - 40); };
  std::string path = fmt::format("M10,{:.1f}", y(0));
  for (const Sample& s : all) path += fmt::format("H{:.1f}V{:.1f}", x(s), y(static_cast<double>(s.bytes)));
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"12\"><rect width=\"{0}\" height=\"{1}\" fill=\"white\"/><path d=\"{2}\" fill=\"none\" "
      "stroke=\"#1f77b4\"/><circle cx=\"{3:.1f}\" cy=\"{4:.1f}\" r=\"3\" fill=\"#d62728\"/><text x=\"10\" y=\"14\">"
      "peak {5:.3f} MB in {6} ({7})</text></svg>\n",
      width, height, path, x(peak()), y(static_cast<double>(peak().bytes)), static_cast<double>(peak().bytes) / 1e6,
      peak().module.empty() ? "no module" : peak().module, peak().phase == Phase::forward ? "forward" : "backward");
}

}  // namespace dtensor
