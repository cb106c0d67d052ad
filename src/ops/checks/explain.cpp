// Counts collectives by the module and operator that cause them, from events. Calls record which placements would avoid
// them.
#include "ops/checks/explain.h"

#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "comm/event_listeners.h"
#include "comm/record/caller.h"
#include "dtensor/inspect.h"
#include "ops/checks/inspect_state.h"
#include "scope/module_scope.h"

namespace dtensor {
namespace {

struct Count {
  std::int64_t calls = 0, bytes = 0;
};

// Communication of one operator in one module.
struct Moved {
  std::map<std::pair<std::string, std::string>, Count> collectives;  // by name and axis
  std::set<std::string> avoided;                                     // placements that would avoid it
};

// Locked, because autograd's threads may record concurrently.
class MoveLog {
 public:
  void add(const Event& event) {
    if (event.bytes == 0) return;
    const std::lock_guard lock(mutex_);
    auto& count = here().collectives[{event.name, event.axis}];
    ++count.calls;
    count.bytes += event.bytes;
  }
  void avoid(const std::string& how) {
    const std::lock_guard lock(mutex_);
    here().avoided.insert(how);
  }
  std::string str() const;

 private:
  Moved& here() {
    static const std::string no_caller = "direct calls";
    const auto* module = calling_module();
    const auto* caller = CallerScope::current();
    return modules_[module == nullptr ? "" : *module][caller == nullptr ? no_caller : *caller];
  }

  std::mutex mutex_;
  std::map<std::string, std::map<std::string, Moved>> modules_;
};

std::int64_t bytes_of(const Moved& moved) {
  std::int64_t bytes = 0;
  for (const auto& [key, count] : moved.collectives) bytes += count.bytes;
  return bytes;
}

std::int64_t bytes_of(const std::map<std::string, Moved>& callers) {
  std::int64_t bytes = 0;
  for (const auto& [name, moved] : callers) bytes += bytes_of(moved);
  return bytes;
}

std::string text_of(const std::string& caller, const Moved& moved) {
  std::string text = "  " + caller + ":";
  bool first = true;
  for (const auto& [key, count] : moved.collectives) {
    text += fmt::format("{} {} {}{}, {} bytes", first ? "" : ";", count.calls, key.first,
                        key.second.empty() ? "" : " over " + key.second, count.bytes);
    first = false;
  }
  text += "\n";
  for (const auto& how : moved.avoided) text += "    avoided by " + how + "\n";
  return text;
}

std::string MoveLog::str() const {
  std::int64_t total = 0;
  std::string text;
  for (const auto& [module, callers] : modules_) {
    total += bytes_of(callers);
    text += fmt::format("{}: {} bytes\n", module.empty() ? "outside any module" : module, bytes_of(callers));
    for (const auto& [caller, moved] : callers) text += text_of(caller, moved);
  }
  return text.empty() ? "no communication\n" : text + fmt::format("total: {} bytes\n", total);
}

std::string explain_moves(const std::function<void()>& fn) {
  MoveLog log;
  const ScopedValue<MoveLog*> scope(&log, Recompute::unchanged, OperatorScope::yes);
  const NodeRecorder modules_of_backward;
  const EventListener listener([&](const Event& event) { log.add(event); }, {Event::Kind::collective});
  fn();
  return log.str();
}

}  // namespace

bool is_explaining_redistributions() { return ScopedValue<MoveLog*>::current() != nullptr; }

void record_redistribution(const std::string& operand, const std::string& from, const Placements& to) {
  auto* const* log = ScopedValue<MoveLog*>::current();
  if (log != nullptr) (*log)->avoid(fmt::format("{} in {} (it is {})", operand, to_string(to), from));
}

void record_redistributions(const CachedCall& call) {
  if (!is_explaining_redistributions()) return;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    if (input.plan.bytes_moved == 0) continue;
    record_redistribution(fmt::format("operand {}", i), input.from->str(), input.to->placements);
  }
}

std::string explain(const std::function<void()>& fn, Explain what) {
  return what == Explain::decisions ? explain_calls(fn) : explain_moves(fn);
}

}  // namespace dtensor
