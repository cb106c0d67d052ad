// Strict mode, explanations, and reports of implicit redistributions and of operators without a rule.
#include "ops/checks/inspect_state.h"

#include <mutex>
#include <set>

#include "dtensor/inspect.h"
#include "ops/checks/explain.h"
#include "scope/scope_frames.h"
#include "sharding_prop/propagate.h"

namespace dtensor {
namespace {

// The text of an explanation. Locked, because autograd's threads may record concurrently.
class Explanation {
 public:
  void add(const std::string& reports) {
    const std::lock_guard lock(mutex_);
    text_ += reports + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

template <class T>
bool holds(T value) {
  const auto* now = ScopedValue<T>::current();
  return now != nullptr && *now == value;
}

bool first_report_of(const c10::OperatorName& name) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  std::lock_guard lock(mutex);
  return reported.insert(c10::toString(name)).second;
}

// Whether this rank reports for the mesh. Only the first rank warns, since all ranks would warn of the same.
bool is_reporting_rank(const MeshInfo& mesh) { return mesh.world_rank == mesh.layout.ranks[0]; }

std::string moves_text(const OpEntry& entry, const CachedCall& call) {
  auto text = c10::str(entry.name(), " moves ", call.implicit_bytes, " bytes to the rank that receives most:");
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    if (!input.plan.empty()) text += c10::str(" operand ", i, " ", input.from->str(), " -> ", input.to->str(), ";");
    if (!input.write_back_plan.empty()) text += c10::str(" and back to ", input.from->str(), ";");
  }
  return text;
}

}  // namespace

Strict::Strict(Strictness strictness) : scope_(open_scope(strictness, Recompute::restored)) {}

ImplicitRedistributionScope::ImplicitRedistributionScope(ImplicitRedistribution moves)
    : scope_(open_scope(moves, Recompute::restored)) {}

bool strict_mode() { return holds(Strictness::strict); }
bool recording_explanations() { return any_operator_scope() && ScopedValue<Explanation*>::current() != nullptr; }

void record_explanation(const OpCall& call) {
  if (recording_explanations()) record_explanation(explain_decision(call));
}

void record_explanation(const std::string& text) {
  if (recording_explanations()) (*ScopedValue<Explanation*>::current())->add(text);
}

void report_replicated(const OpEntry& entry, const CachedCall& call, bool fresh) {
  if (C10_LIKELY(!call.decision.warn_replicated)) return;
  TORCH_CHECK(!strict_mode(), entry.name(),
              " has no sharding rule and would run replicated, which Strict refuses. Add a rule (docs/rules.md).");
  if (!fresh || !is_reporting_rank(*call.mesh) || !first_report_of(entry.name())) return;
  TORCH_WARN(entry.name(),
             " has no sharding rule: it runs replicated on gathered operands. Add a rule "
             "(docs/rules.md) to keep it sharded. (Reported once per operator.)");
}

bool is_implicit_redistribution_restricted() {
  const auto* moves = ScopedValue<ImplicitRedistribution>::current();
  return moves != nullptr && *moves != ImplicitRedistribution::allow;
}

void report_implicit_redistributions(const MeshInfo& mesh, const std::function<std::string()>& text) {
  if (!is_implicit_redistribution_restricted()) return;
  TORCH_CHECK(!holds(ImplicitRedistribution::error), text(),
              " ImplicitRedistributionScope refuses that. Redistribute the operands first.");
  if (is_reporting_rank(mesh)) TORCH_WARN(text());
}

void report_implicit_redistributions(const OpEntry& entry, const CachedCall& call) {
  if (call.implicit_bytes == 0) return;
  record_redistributions(call);
  report_implicit_redistributions(*call.mesh, [&] { return moves_text(entry, call); });
}

std::string explain_calls(const std::function<void()>& fn) {
  Explanation reports;
  const ScopedValue<Explanation*> scope(&reports, Recompute::unchanged, OperatorScope::yes);
  fn();
  return reports.text();
}

}  // namespace dtensor
