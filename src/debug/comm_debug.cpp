// Counts collectives by kind, mesh axis, module and phase, from the event stream.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <set>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "scope/module_scope.h"

namespace dtensor {

struct CommDebugMode::State {
  NodeRecorder recorder;
  std::map<CommKey, CommCount> counts;
  EventListener listener{[this](const Event& event) { hear(event); }};

  void hear(const Event& event) {
    const Place place = current_place();  // operators too: they move the place of a backward pass
    if (event.kind != Event::Kind::collective) return;
    CommCount& count = counts[{event.name, event.axis, place.module, place.phase}];
    ++count.calls;
    count.bytes += event.bytes;
  }
};

CommDebugMode::CommDebugMode() : state_(std::make_unique<State>()) {}
CommDebugMode::~CommDebugMode() = default;

const std::map<CommKey, CommCount>& CommDebugMode::counts() const { return state_->counts; }
void CommDebugMode::reset() { state_->counts.clear(); }

CommCount CommDebugMode::total(const std::function<bool(const CommKey&)>& of) const {
  CommCount sum;
  for (const auto& [key, count] : state_->counts) {
    if (of && !of(key)) continue;
    sum.calls += count.calls;
    sum.bytes += count.bytes;
  }
  return sum;
}

namespace {

bool is_within(const std::string& module, const std::string& parent) {
  if (parent.empty() || module == parent) return true;
  return module.size() > parent.size() && module.starts_with(parent) && module[parent.size()] == '.';
}

}  // namespace

CommCount CommDebugMode::total(const std::string& kind, const std::string& axis, const std::string& module) const {
  return total([&](const CommKey& key) {
    return (kind.empty() || key.kind == kind) && (axis.empty() || key.axis == axis) && is_within(key.module, module);
  });
}

CommCount CommDebugMode::total(const std::string& kind, Phase phase, const std::string& module) const {
  return total([&](const CommKey& key) {
    return (kind.empty() || key.kind == kind) && key.phase == phase && is_within(key.module, module);
  });
}

std::string CommDebugMode::table() const {
  std::size_t width = 6;
  for (const auto& [key, count] : counts()) width = std::max(width, key.module.size());
  std::string text = fmt::format("{:<{}}  {:<8}  {:<14}  {:<16}  {:>6}  {:>12}\n", "module", width, "phase",
                                 "collective", "axis", "calls", "bytes");
  const auto add = [&](const CommKey& key, const CommCount& count) {
    text +=
        fmt::format("{:<{}}  {:<8}  {:<14}  {:<16}  {:>6}  {:>12}\n", key.module, width,
                    key.phase == Phase::forward ? "forward" : "backward", key.kind, key.axis, count.calls, count.bytes);
  };
  for (const auto& [key, count] : counts()) add(key, count);
  const CommCount sum = total();
  return text + fmt::format("{:<{}}  {:<8}  {:<14}  {:<16}  {:>6}  {:>12}\n", "total", width, "", "", "", sum.calls,
                            sum.bytes);
}

}  // namespace dtensor
