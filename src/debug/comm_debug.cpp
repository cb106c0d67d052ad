// Counts collectives by kind, mesh axis, module and phase, from the event stream.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "dtensor/tensor.h"
#include "scope/module_scope.h"

namespace dtensor {

namespace {

// Names of parameters by the storages of their local tensors. Views, saved copies and operands of calls share these
// storages.
class ParameterNames {
 public:
  explicit ParameterNames(const NamedTensors& parameters) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : parameters) {
      if (!is_dtensor(*tensor) || !DTensor(*tensor).mesh().is_member()) continue;
      const auto local = DTensor(*tensor).to_local();
      if (local.has_storage()) names_.try_emplace(local.storage().unsafeGetStorageImpl(), name);
    }
  }

  // For one parameter its name, for several the common part of their names and their number: "h.0.* (12)".
  std::string of(const std::vector<const void*>& storages) const {
    std::set<std::string> found;
    for (const void* storage : storages) {
      if (const auto* name = find(storage)) found.insert(*name);
    }
    if (found.size() < 2) return found.empty() ? "" : *found.begin();
    return fmt::format("{}* ({})", common(*found.begin(), *found.rbegin()), found.size());
  }

 private:
  // The common prefix up to a dot. The set is sorted, so the prefix of its first and last name is common to all.
  static std::string common(const std::string& first, const std::string& last) {
    const auto differs = std::mismatch(first.begin(), first.end(), last.begin(), last.end()).first;
    const auto dot = std::string(first.begin(), differs).rfind('.');
    return dot == std::string::npos ? "" : first.substr(0, dot + 1);
  }

  const std::string* find(const void* storage) const {
    const auto found = names_.find(storage);
    return found == names_.end() ? nullptr : &found->second;
  }

  std::unordered_map<const void*, std::string> names_;
};

}  // namespace

struct CommDebugMode::State {
  explicit State(const NamedTensors& parameters) : names(parameters) {}

  const ParameterNames names;
  NodeRecorder recorder;
  std::map<CommDebugMode::Key, CommDebugMode::Count> counts;
  EventListener listener{[this](const Event& event) { on_event(event); }};

  void on_event(const Event& event) {
    // Called for operators too, because it advances the current module of a backward pass.
    const ModuleAndPhase place = current_module_and_phase();
    if (event.kind != Event::Kind::collective) return;
    CommDebugMode::Count& count =
        counts[{event.name, event.axis, place.module, place.phase, names.of(CollectiveTag::storages())}];
    ++count.calls;
    count.bytes += event.bytes;
  }
};

CommDebugMode::CommDebugMode() : CommDebugMode(NamedTensors()) {}
CommDebugMode::CommDebugMode(const NamedTensors& parameters) : state_(std::make_unique<State>(parameters)) {}
CommDebugMode::~CommDebugMode() = default;

const std::map<CommDebugMode::Key, CommDebugMode::Count>& CommDebugMode::counts() const { return state_->counts; }
void CommDebugMode::reset() { state_->counts.clear(); }

CommDebugMode::Count CommDebugMode::total(const std::function<bool(const CommDebugMode::Key&)>& of) const {
  CommDebugMode::Count sum;
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

CommDebugMode::Count CommDebugMode::total(const std::string& kind, const std::string& axis,
                                          const std::string& module) const {
  return total([&](const CommDebugMode::Key& key) {
    return (kind.empty() || key.kind == kind) && (axis.empty() || key.axis == axis) && is_within(key.module, module);
  });
}

CommDebugMode::Count CommDebugMode::total(const std::string& kind, Phase phase, const std::string& module) const {
  return total([&](const CommDebugMode::Key& key) {
    return (kind.empty() || key.kind == kind) && key.phase == phase && is_within(key.module, module);
  });
}

std::string CommDebugMode::table() const {
  std::size_t width = 6, named = 0;  // the column of parameters is printed only if a parameter is known
  for (const auto& [key, count] : counts()) {
    width = std::max(width, key.module.size());
    if (!key.parameter.empty()) named = std::max({named, key.parameter.size(), std::size_t{9}});
  }
  std::string text;
  const auto add = [&](const std::string& module, const std::string& phase, const std::string& kind,
                       const std::string& axis, const std::string& parameter, auto calls, auto bytes) {
    text += fmt::format("{:<{}}  {:<8}  {:<14}  {:<16}  ", module, width, phase, kind, axis);
    if (named > 0) text += fmt::format("{:<{}}  ", parameter, named);
    text += fmt::format("{:>6}  {:>12}\n", calls, bytes);
  };
  add("module", "phase", "collective", "axis", "parameter", "calls", "bytes");
  for (const auto& [key, count] : counts()) {
    const char* phase = key.phase == Phase::forward ? "forward" : "backward";
    add(key.module, phase, key.kind, key.axis, key.parameter, count.calls, count.bytes);
  }
  const CommDebugMode::Count sum = total();
  add("total", "", "", "", "", sum.calls, sum.bytes);
  return text;
}

}  // namespace dtensor
