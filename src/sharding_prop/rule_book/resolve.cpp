// Finds an operator's rule. The order is: its own rule, the rule of its name for all overloads, of its base operator
// (in-place, out=, _copy), of its tag, of a name prefix ("aten::_foreach_*").
#include "sharding_prop/rule_book/resolve.h"

#include <deque>
#include <mutex>

namespace dtensor {
namespace {

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() > suffix.size() && text.ends_with(suffix);
}

// The overloads of the operator `base`, from which `derived` may derive. All registered operators are read once, and
// again if `derived` is not among them: a base operator comes with the library of its derived ones.
std::vector<c10::OperatorName> overloads_of(const std::string& base, const c10::OperatorName& derived) {
  static std::mutex mutex;
  static auto& table = *new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
  const std::lock_guard lock(mutex);
  const auto& known = table[derived.name];
  if (std::find(known.begin(), known.end(), derived) == known.end()) {
    table.clear();
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) table[op.name].push_back(op);
  }
  return table[base];
}

// Whether `base` has the arguments of `derived`, except for out arguments and for options with defaults (dtype, layout,
// ...).
bool same_inputs(const c10::FunctionSchema& base, const c10::FunctionSchema& derived, const OpInfo& info) {
  for (std::size_t i = 0; i < derived.arguments().size(); ++i) {
    if (info.is_out(static_cast<int>(i))) continue;
    const auto at = base.argumentIndexWithName(derived.arguments()[i].name());
    if (!at) return false;
    const c10::Argument& other = base.arguments()[static_cast<std::size_t>(*at)];
    if (other.is_out() || *other.type() != *derived.arguments()[i].type()) return false;
  }
  return std::all_of(base.arguments().begin(), base.arguments().end(), [&](const c10::Argument& argument) {
    return argument.default_value().has_value() || derived.argumentIndexWithName(argument.name()).has_value();
  });
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

RuleEntryPtr find_derived(const OpInfo& info, const std::string& base, std::string& derived_from) {
  const c10::FunctionSchema& schema = info.schema();
  for (const c10::OperatorName& candidate : overloads_of(base, schema.operator_name())) {
    if (candidate == schema.operator_name()) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(candidate);
    if (!handle || !same_inputs(handle->schema(), schema, info)) continue;
    derived_from = full_name(candidate);
    if (auto entry = find_rule_entry(derived_from)) return entry;
    if (auto entry = find_rule_entry(base)) return entry;
    if (auto entry = find_rule_entry_by_tag(handle->getTags())) return entry;
  }
  derived_from = base;
  // `split_copy.Tensor_out` derives from `split_copy.Tensor` and so from `split.Tensor`.
  if (ends_with(base, "_copy")) return find_derived(info, base.substr(0, base.size() - 5), derived_from);
  return find_rule_entry(base);
}

// Finds "aten::_foreach_*" for "aten::_foreach_abs".
RuleEntryPtr find_by_beginning(std::string name) {
  for (; !name.empty(); name.pop_back()) {
    if (auto entry = find_rule_entry(name + "*")) return entry;
  }
  return nullptr;
}

RuleEntryPtr find_rule(const OpInfo& info, std::string& derived_from) {
  const std::string base = base_name(info);
  if (auto entry = find_rule_entry(full_name(info.name()))) return entry;
  if (base != info.name().name) {
    if (auto entry = find_rule_entry(info.name().name)) return entry;
  }
  if (!base.empty()) {
    if (auto entry = find_derived(info, base, derived_from)) return entry;
    derived_from.clear();
  }
  if (auto entry = find_rule_entry_by_tag(info.op.getTags())) return entry;
  return find_by_beginning(info.name().name);
}

}  // namespace

std::string base_name(const OpInfo& info) {
  const std::string& name = info.name().name;
  if (info.inplace && ends_with(name, "_") && !ends_with(name, "__")) return name.substr(0, name.size() - 1);
  if (info.has_out) return name;
  if (ends_with(name, "_copy")) return name.substr(0, name.size() - 5);
  return {};
}

const OpRule& OpInfo::find_rule() const {
  static std::mutex mutex;
  static auto& rules = *new std::deque<OpRule>();
  RuleBook::get();
  const std::uint64_t version = book_version.load();  // read first, so that later changes are found by the next call
  std::string derived_from;
  auto entry = dtensor::find_rule(*this, derived_from);
  const std::lock_guard lock(mutex);
  OpRule& found = rules.emplace_back();
  found.entry = entry ? std::move(entry) : std::make_shared<RuleEntry>();
  found.derived_from = std::move(derived_from);
  found.version = version;
  found.reads_scalars = found.entry->source == RuleSource::none || found.data().reads_scalars;
  found.reads_only = !mutates && !gives_view && !inplace_view && found.data().written == 0;
  rule_.store(&found, std::memory_order_release);
  return found;
}

Rule rule_for(const OpCall& call) {
  const bool unknown_sizes = call.runs_replicated || (!call.outputs.empty() && call.outputs[0].from_local);
  const RuleEntry& entry = *call.info->rule().entry;
  if (entry.source != RuleSource::rule || unknown_sizes) return Rule();
  return expand_packs(entry.function ? entry.function(call) : entry.constant, call);
}

}  // namespace dtensor
