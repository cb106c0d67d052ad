// Allocators report each allocation and release to the thread's profiler state, which this file implements.
#include "chart/chart.h"
#include "dtensor/debug.h"

#define FMT_HEADER_ONLY
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "internal/host_work.h"
#include "internal/memory_kind.h"
#include "scope/module_scope.h"

namespace dtensor {

const char* to_string(MemoryKind kind) {
  constexpr std::array<const char*, std::tuple_size_v<MemoryByKind>> kNames = {
      "parameters", "gradients", "optimizer states", "gathered", "activations", "communication"};
  return kNames[static_cast<std::size_t>(kind)];
}

using DebugInfo = c10::ThreadLocalDebugInfo;

// Locks a mutex, since threads of a backward pass report concurrently.
struct MemoryTimeline::State : c10::MemoryReportingInfoBase, MemoryKindListener {
  explicit State(std::int64_t r) : resolution(r) {}

  void reportMemoryUsage(void* ptr, std::int64_t change, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    if (outer != nullptr) outer->reportMemoryUsage(ptr, change, 0, 0, c10::Device(c10::kCPU));
    if (closed || (change > 0 && HostWorkScope::allocates_on_host())) return;
    const ModuleAndPhase place = current_module_and_phase();
    const std::lock_guard lock(mutex);
    if (change < 0) record_peak_holders();
    if (!attribute(ptr, change, place)) return;
    live += change;
    const bool highest = live > peak.bytes;
    const bool far = samples.empty() || std::abs(live - samples.back().bytes) >= resolution;
    if (!highest && !far) return;
    Sample sample{std::chrono::steady_clock::now(), live, place.module, place.phase};
    if (highest) peak = sample, is_at_peak = true, peak_noted = far;
    if (far) samples.push_back(std::move(sample));
  }

  // Adds the peak to the samples, even if it is close to the previous sample. This is done lazily, when samples are
  // read.
  void note_peak() {
    if (std::exchange(peak_noted, true)) return;
    const auto later = [](const Sample& a, const Sample& b) { return a.when < b.when; };
    samples.insert(std::upper_bound(samples.begin(), samples.end(), peak, later), peak);
  }

  // The holders at the peak are copied when memory is first freed after it.
  void record_peak_holders() {
    if (std::exchange(is_at_peak, false)) peak_holders = holders, peak_kinds = by_kind;
  }

  // Freed memory is attributed to its allocation, by address. False: it is from before the start.
  bool attribute(void* ptr, std::int64_t change, const ModuleAndPhase& place) {
    if (change > 0) {
      const MemoryBlock made{change, {place.module, place.phase}, MemoryKindScope::current()};
      const auto [block, fresh] = blocks.try_emplace(ptr, made);
      if (!fresh) forget(block->second);  // its release on another thread was not reported
      block->second = made;
      holders[made.by] += change;
      by_kind[static_cast<std::size_t>(made.kind)] += change;
      return true;
    }
    const auto block = blocks.find(ptr);
    if (block == blocks.end()) return false;
    forget(block->second);
    blocks.erase(block);
    return true;
  }
  bool memoryProfilingEnabled() const override { return true; }

  void set_kind(const void* ptr, MemoryKind kind) override {
    if (outer != nullptr) outer->set_kind(ptr, kind);
    const std::lock_guard lock(mutex);
    const auto block = blocks.find(const_cast<void*>(ptr));
    if (block == blocks.end()) return;
    by_kind[static_cast<std::size_t>(block->second.kind)] -= block->second.bytes;
    block->second.kind = kind;
    by_kind[static_cast<std::size_t>(kind)] += block->second.bytes;
  }

  void open(const std::shared_ptr<State>& self) {
    below = DebugInfo::current();
    DebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, self);
    entry = DebugInfo::current();
  }
  // Only the top entry can be removed. Entries that were opened later, by another timeline or any scope, may live
  // longer.
  static void drop_closed() {
    for (auto top = DebugInfo::current(); top != nullptr; top = DebugInfo::current()) {
      const auto* s = dynamic_cast<State*>(DebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
      if (s == nullptr || !s->closed || s->entry.lock() != top) return;
      DebugInfo::_forceCurrentDebugInfo(std::shared_ptr<DebugInfo>(s->below));
    }
  }

  // Guards all members that reports change.
  std::mutex mutex;
  std::int64_t resolution, live = 0;
  using BlockOwner = std::pair<std::string, Phase>;
  struct MemoryBlock {
    std::int64_t bytes;
    BlockOwner by;
    MemoryKind kind;
  };
  void forget(const MemoryBlock& block) {
    holders[block.by] -= block.bytes;
    by_kind[static_cast<std::size_t>(block.kind)] -= block.bytes;
  }
  Sample peak;
  bool is_at_peak = false;  // no memory was freed since the peak
  bool peak_noted = true;   // whether samples contain the peak
  std::unordered_map<void*, MemoryBlock> blocks;
  std::map<BlockOwner, std::int64_t> holders, peak_holders;
  MemoryByKind by_kind = {}, peak_kinds = {};
  std::vector<Sample> samples;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  State* outer = nullptr;  // kept alive by `below`
  std::atomic<bool> closed = false;
  std::optional<NodeRecorder> recorder{std::in_place};
  std::shared_ptr<DebugInfo> below;
  std::weak_ptr<DebugInfo> entry;
};

MemoryTimeline::MemoryTimeline(std::int64_t resolution) : state_(std::make_shared<State>(resolution)) {
  auto* present = DebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  state_->outer = dynamic_cast<State*>(present);
  TORCH_CHECK(present == nullptr || state_->outer != nullptr,
              "MemoryTimeline: a profiler runs on this thread; stop it first");
  state_->peak.when = state_->begin;
  state_->open(state_);
}

// Autograd nodes and later entries may keep the state alive; it ignores reports from now on.
MemoryTimeline::~MemoryTimeline() {
  state_->closed = true;
  State::drop_closed();
  state_->recorder.reset();  // removes the entry of the recorder, which is below
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
  const ModuleAndPhase place = current_module_and_phase();
  const std::lock_guard lock(state_->mutex);
  state_->note_peak();
  state_->peak = {std::chrono::steady_clock::now(), state_->live, place.module, place.phase};
  state_->is_at_peak = true;
}

std::vector<MemoryTimeline::Holder> MemoryTimeline::holders_at_peak() const {
  std::vector<Holder> list;
  const std::lock_guard lock(state_->mutex);
  for (const auto& [by, bytes] : state_->is_at_peak ? state_->holders : state_->peak_holders) {
    if (bytes > 0) list.push_back({by.first, by.second, bytes});
  }
  std::stable_sort(list.begin(), list.end(), [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return list;
}

MemoryByKind MemoryTimeline::peak_by_kind() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_at_peak ? state_->by_kind : state_->peak_kinds;
}

namespace {

double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

const char* name_of(Phase phase) { return phase == Phase::forward ? "forward" : "backward"; }
std::string name_of(const std::string& module) { return module.empty() ? "no module" : module; }

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

std::string MemoryTimeline::csv() const {
  std::string text = "seconds,bytes,phase,module\n";
  for (const Sample& s : samples()) {
    text += fmt::format("{:.6f},{},{},{}\n", seconds(s.when - state_->begin), s.bytes, name_of(s.phase), s.module);
  }
  return text;
}

std::string MemoryTimeline::svg(int width, int height) const {
  constexpr int kAround = 122;  // pixels above and below the plot
  const auto ms = [&](const Sample& s) { return 1e3 * seconds(s.when - state_->begin); };
  ChartPanel panel{.title = fmt::format("peak {:.3f} MB in {} ({})", megabytes(peak().bytes), name_of(peak().module),
                                        name_of(peak().phase)),
                   .x_label = "time, ms",
                   .y_label = "memory, MB",
                   .notes = {"held at the peak, MB"},
                   .height = static_cast<double>(std::max(height - kAround, 80))};
  ChartSeries live{.x = {0}, .y = {0}, .style = ChartSeries::Style::steps};
  const auto& all = samples();
  for (std::size_t i = 0; i < all.size(); ++i) {
    live.x.push_back(ms(all[i])), live.y.push_back(megabytes(all[i].bytes));
    if (all[i].phase != Phase::backward) continue;
    const double end = ms(all[std::min(i + 1, all.size() - 1)]);
    const bool goes_on = i > 0 && all[i - 1].phase == Phase::backward;
    goes_on ? void(panel.bands.back().end = end) : panel.bands.push_back({ms(all[i]), end, "backward"});
  }
  panel.series = {live, {.x = {ms(peak())}, .y = {megabytes(peak().bytes)}, .style = ChartSeries::Style::points}};
  for (const Holder& holder : holders_at_peak()) {
    panel.notes.push_back(
        fmt::format("{:.3f} {} ({})", megabytes(holder.bytes), name_of(holder.module), name_of(holder.phase)));
  }
  return to_svg({.panels = {panel}, .width = static_cast<double>(width)});
}

}  // namespace dtensor
