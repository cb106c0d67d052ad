// Strict and checked mode, explanations, warnings about operators without a rule.
#include "ops/inspect_state.h"

#include <mutex>
#include <set>

#include "dtensor/inspect.h"

namespace dtensor {
namespace {

thread_local Strictness strictness = Strictness::relaxed;
thread_local ImplicitMoves implicit_moves = ImplicitMoves::allowed;
thread_local bool checked = false;
thread_local std::string* explanation = nullptr;

bool first_report_of(const c10::OperatorName& name) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  std::lock_guard lock(mutex);
  return reported.insert(c10::toString(name)).second;
}

std::string moves_text(const OpEntry& entry, const CachedCall& call) {
  auto text =
      c10::str(entry.op.operator_name(), " moves ", call.implicit_bytes, " bytes to the rank that receives most:");
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    if (!input.plan.empty()) text += c10::str(" operand ", i, " ", input.from->str(), " -> ", input.to->str(), ";");
    if (!input.write_back_plan.empty()) text += c10::str(" and back to ", input.from->str(), ";");
  }
  return text;
}

}  // namespace

bool strict_mode() { return strictness == Strictness::strict; }
bool checked_mode() { return checked; }
bool recording_explanations() { return explanation != nullptr; }

void record_explanation(const OpEntry& entry, const OpCall& call) {
  if (explanation != nullptr) *explanation += explain_decision(entry.op, call) + "\n";
}

void report_replicated(const OpEntry& entry, const Decision& decision) {
  if (!decision.warn_replicated) return;
  TORCH_CHECK(!strict_mode(), entry.op.operator_name(),
              " has no sharding rule and would run replicated, which Strict refuses. Add a rule (docs/rules.md).");
  if (!first_report_of(entry.op.operator_name())) return;
  TORCH_WARN(entry.op.operator_name(),
             " has no sharding rule: it runs replicated, on gathered operands. Add a rule "
             "(docs/rules.md) to keep it sharded. (Said once per operator.)");
}

bool watching_moves() { return implicit_moves != ImplicitMoves::allowed; }

void report_moves(const OpEntry& entry, const CachedCall& call) {
  if (call.implicit_bytes == 0) return;
  TORCH_CHECK(implicit_moves != ImplicitMoves::refused, moves_text(entry, call),
              " ExplicitRedistribution refuses that. Redistribute the operands first.");
  TORCH_WARN(moves_text(entry, call));
}

ExplicitRedistribution::ExplicitRedistribution(ImplicitMoves moves) : previous_(implicit_moves) {
  implicit_moves = moves;
}
ExplicitRedistribution::~ExplicitRedistribution() { implicit_moves = previous_; }
Strict::Strict(Strictness value) : previous_(strictness) { strictness = value; }
Strict::~Strict() { strictness = previous_; }
Checked::Checked() : previous_(checked) { checked = true; }
Checked::~Checked() { checked = previous_; }

std::string explain(const std::function<void()>& fn) {
  std::string text;
  auto* outer = std::exchange(explanation, &text);
  try {
    fn();
  } catch (...) {
    explanation = outer;
    throw;
  }
  explanation = outer;
  return text;
}

}  // namespace dtensor
