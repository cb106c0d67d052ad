// Listens where ATen's profiler would: allocators report each allocation and release to the thread's profiler state.
#include "dtensor/memory_timeline.h"

#define FMT_HEADER_ONLY
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "debug/escaped.h"
#include "scope/module_scope.h"

namespace dtensor {

using DebugInfo = c10::ThreadLocalDebugInfo;

// Several threads report where a backward pass runs on some of its own.
struct MemoryTimeline::State : c10::MemoryReportingInfoBase {
  explicit State(std::int64_t r) : resolution(r) {}

  void reportMemoryUsage(void* ptr, std::int64_t change, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    if (outer != nullptr) outer->reportMemoryUsage(ptr, change, 0, 0, c10::Device(c10::kCPU));
    if (closed) return;
    const Place place = current_place();
    const std::lock_guard lock(mutex);
    if (change < 0) keep_peak_holders();
    attribute(ptr, change, place);
    live += change;
    const bool highest = live > peak.bytes;
    const bool far = samples.empty() || std::abs(live - samples.back().bytes) >= resolution;
    if (!highest && !far) return;
    Sample sample{std::chrono::steady_clock::now(), live, place.module, place.phase};
    if (highest) peak = sample, at_peak = true, peak_noted = far;
    if (far) samples.push_back(std::move(sample));
  }

  // The highest is kept however near it was to the sample before it; which that is, is known when somebody asks.
  void note_peak() {
    if (std::exchange(peak_noted, true)) return;
    const auto later = [](const Sample& a, const Sample& b) { return a.when < b.when; };
    samples.insert(std::upper_bound(samples.begin(), samples.end(), peak, later), peak);
  }

  // The holders at the peak are those when memory is first given back after it.
  void keep_peak_holders() {
    if (std::exchange(at_peak, false)) peak_holders = holders;
  }

  // What is given back was made by whoever is known by its address; memory from before the start by nobody.
  void attribute(void* ptr, std::int64_t change, const Place& place) {
    if (change > 0) {
      const Made made{change, {place.module, place.phase}};
      const auto [block, fresh] = blocks.try_emplace(ptr, made);
      if (!fresh) holders[block->second.by] -= block->second.bytes;  // given back unseen, on another thread
      block->second = made;
      holders[made.by] += change;
      return;
    }
    const auto block = blocks.find(ptr);
    if (block == blocks.end()) return;
    holders[block->second.by] -= block->second.bytes;
    blocks.erase(block);
  }
  bool memoryProfilingEnabled() const override { return true; }

  void open(const std::shared_ptr<State>& self) {
    below = DebugInfo::current();
    DebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, self);
    entry = DebugInfo::current();
  }
  // Entries go from the top only: what was opened later than this one, another timeline or any scope, may live longer.
  static void drop_closed() {
    for (auto top = DebugInfo::current(); top != nullptr; top = DebugInfo::current()) {
      const auto* s = dynamic_cast<State*>(DebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
      if (s == nullptr || !s->closed || s->entry.lock() != top) return;
      DebugInfo::_forceCurrentDebugInfo(std::shared_ptr<DebugInfo>(s->below));
    }
  }

  std::mutex mutex;  // of all that reports change
  std::int64_t resolution, live = 0;
  using Maker = std::pair<std::string, Phase>;
  struct Made {
    std::int64_t bytes;
    Maker by;
  };
  Sample peak;
  bool at_peak = false;    // nothing was given back since
  bool peak_noted = true;  // among the samples
  std::unordered_map<void*, Made> blocks;
  std::map<Maker, std::int64_t> holders, peak_holders;
  std::vector<Sample> samples;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  State* outer = nullptr;  // kept alive by what lies below
  std::atomic<bool> closed = false;
  std::optional<NodeRecorder> recorder{std::in_place};
  std::shared_ptr<DebugInfo> below;
  std::weak_ptr<DebugInfo> entry;
};

MemoryTimeline::MemoryTimeline(std::int64_t resolution) : state_(std::make_shared<State>(resolution)) {
  auto* present = DebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  state_->outer = dynamic_cast<State*>(present);
  TORCH_CHECK(present == nullptr || state_->outer != nullptr, "MemoryTimeline: a profiler runs on this thread");
  state_->peak.when = state_->begin;
  state_->open(state_);
}

// Autograd nodes made meanwhile, and entries above its own, may carry the state further: it hears nothing any more.
MemoryTimeline::~MemoryTimeline() {
  state_->closed = true;
  State::drop_closed();
  state_->recorder.reset();  // whose own entry lies below
  State::drop_closed();
}

std::int64_t MemoryTimeline::live() const {
  const std::lock_guard lock(state_->mutex);
  return state_->live;
}
const MemoryTimeline::Sample& MemoryTimeline::peak() const { return state_->peak; }

const std::vector<MemoryTimeline::Sample>& MemoryTimeline::samples() const {
  const std::lock_guard lock(state_->mutex);
  state_->note_peak();
  return state_->samples;
}

void MemoryTimeline::reset_peak() {
  const Place place = current_place();
  const std::lock_guard lock(state_->mutex);
  state_->note_peak();
  state_->peak = {std::chrono::steady_clock::now(), state_->live, place.module, place.phase};
  state_->at_peak = true;
}

std::vector<MemoryTimeline::Holder> MemoryTimeline::holders_at_peak() const {
  std::vector<Holder> list;
  const std::lock_guard lock(state_->mutex);
  for (const auto& [by, bytes] : state_->at_peak ? state_->holders : state_->peak_holders) {
    if (bytes > 0) list.push_back({by.first, by.second, bytes});
  }
  std::stable_sort(list.begin(), list.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return list;
}

namespace {

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

const char* name_of(Phase phase) { return phase == Phase::forward ? "forward" : "backward"; }
std::string name_of(const std::string& module) { return module.empty() ? "no module" : module; }

// 1, 2 or 5 times a power of ten, such that `count` of them cover `range`.
double tick_step(double range, int count) {
  const double rough = range / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

// The drawing: dark on white, whatever the page around it is.
class Drawing {
 public:
  static constexpr double kLeft = 70, kTop = 34, kBottom = 40, kKey = 270;

  Drawing(int width, int height, double end, double low, double high)
      : width_(width), height_(height), end_(end), low_(low), high_(high) {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\"><rect width=\"{0}\" height=\"{1}\" "
        "fill=\"white\"/>\n",
        width, height);
  }
  double x(double seconds) const { return kLeft + seconds / end_ * (width_ - kLeft - kKey); }
  double y(double bytes) const { return height_ - kBottom - (bytes - low_) / (high_ - low_) * plot_height(); }
  double plot_height() const { return height_ - kTop - kBottom; }
  double key_left() const { return width_ - kKey + 16; }

  void text(double x, double y, const char* anchor, const std::string& what) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(what));
  }
  void shade(double from, double to) {
    svg_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f3e3c8\"/>\n",
                        x(from), kTop, x(to) - x(from), plot_height());
  }
  void axes() {
    const double right = width_ - kKey, bottom = height_ - kBottom;
    const double step = tick_step((high_ - low_) / 1e6, 4), from = std::ceil(low_ / 1e6 / step) * step;
    for (double mb = from; mb <= high_ / 1e6; mb += step) {
      line(kLeft, y(mb * 1e6), right, y(mb * 1e6), "#ddd");
      text(kLeft - 6, y(mb * 1e6) + 4, "end", fmt::format("{:.4g}", std::abs(mb) < step / 2 ? 0 : mb));
    }
    const double every = tick_step(end_ * 1e3, 6);
    for (double ms = 0; ms <= end_ * 1e3; ms += every) {
      line(x(ms / 1e3), bottom, x(ms / 1e3), bottom + 4, "#555");
      text(x(ms / 1e3), bottom + 17, "middle", fmt::format("{:.4g}", ms));
    }
    line(kLeft, bottom, right, bottom, "#555");
    line(kLeft, kTop, kLeft, bottom, "#555");
    text((kLeft + right) / 2, bottom + 33, "middle", "ms");
    text(kLeft - 6, kTop - 8, "end", "MB");
  }
  void line(double x1, double y1, double x2, double y2, const char* colour) {
    svg_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
                        y2, colour);
  }
  void add(const std::string& element) { svg_ += element + "\n"; }
  std::string str() const { return svg_ + "</svg>\n"; }

 private:
  double width_, height_, end_, low_, high_;
  std::string svg_;
};

}  // namespace

std::string MemoryTimeline::csv() const {
  std::string text = "seconds,bytes,phase,module\n";
  for (const Sample& s : samples()) {
    text += fmt::format("{:.6f},{},{},{}\n", seconds(s.when - state_->begin), s.bytes, name_of(s.phase), s.module);
  }
  return text;
}

std::string MemoryTimeline::svg(int width, int height) const {
  const auto& all = samples();
  const auto when = [&](const Sample& s) { return seconds(s.when - state_->begin); };
  const double end = std::max({all.empty() ? 0 : when(all.back()), when(peak()), 1e-6});
  double low = 0, high = std::max<double>(1, static_cast<double>(peak().bytes));
  for (const Sample& s : all) low = std::min(low, static_cast<double>(s.bytes));
  Drawing drawing(width, height, end, low, high);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].phase == Phase::backward) drawing.shade(when(all[i]), i + 1 < all.size() ? when(all[i + 1]) : end);
  }
  drawing.axes();
  std::string path = fmt::format("M{:.1f},{:.1f}", drawing.x(0), drawing.y(0));
  for (const Sample& s : all) {
    path += fmt::format("H{:.1f}V{:.1f}", drawing.x(when(s)), drawing.y(static_cast<double>(s.bytes)));
  }
  drawing.add(fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"1.5\"/>", path));
  drawing.add(fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#d62728\"/>", drawing.x(when(peak())),
                          drawing.y(static_cast<double>(peak().bytes))));
  drawing.text(Drawing::kLeft + 8, 18, "start",
               fmt::format("peak {:.3f} MB in {} ({}); backward is shaded", static_cast<double>(peak().bytes) / 1e6,
                           name_of(peak().module), name_of(peak().phase)));
  double key = Drawing::kTop + 12;
  drawing.text(drawing.key_left(), key, "start", "held at the peak, MB");
  for (const Holder& holder : holders_at_peak()) {
    key += 18;
    if (key > height - 8) break;
    drawing.text(drawing.key_left(), key, "start",
                 fmt::format("{:.3f} {} ({})", static_cast<double>(holder.bytes) / 1e6, name_of(holder.module),
                             name_of(holder.phase)));
  }
  return drawing.str();
}

}  // namespace dtensor
