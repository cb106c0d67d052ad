// Looks up the rule book entry of each overload of the dispatcher.
#include "coverage/coverage.h"

#include <map>
#include <sstream>

#include "ops/dispatch/operator_entry.h"

namespace dtensor::coverage {
namespace {

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  });
}

Entry classify(const c10::OperatorHandle& op) {
  Entry entry;
  entry.op = c10::toString(op.operator_name());
  if (!takes_tensors(op.schema())) return entry.kind = Kind::factory, entry;
  if (!needs_kernel(op)) return entry.kind = Kind::implicit, entry;
  if (entry_of(op).special != nullptr) return entry.kind = Kind::special_kernel, entry;
  const OpRule& rule = entry_of(op).rule();
  const bool derived = !rule.derived_from.empty();
  entry.replicated = rule.entry->source == RuleSource::replicate;
  entry.refused = rule.entry->source == RuleSource::refuse;
  entry.text = derived ? rule.derived_from : rule.entry->why;
  if (rule.entry->source == RuleSource::none) return entry;
  if (derived) return entry.kind = Kind::derived, entry;
  entry.kind = entry.replicated ? Kind::replicate : entry.refused ? Kind::refuse : Kind::rule;
  return entry;
}

// Overloads of one name in a line: `aten::add` .Scalar .Tensor
using ByName = std::map<std::string, std::vector<std::string>>;

ByName by_name(const std::vector<Entry>& entries, Kind kind, const std::string* text = nullptr) {
  ByName names;
  for (const Entry& entry : entries) {
    if (entry.kind != kind || (text != nullptr && entry.text != *text)) continue;
    const auto dot = entry.op.find('.', entry.op.find("::"));
    names[entry.op.substr(6, dot == std::string::npos ? dot : dot - 6)].push_back(
        dot == std::string::npos ? "" : entry.op.substr(dot));
  }
  return names;
}

void list_names(const ByName& names, std::ostream& out) {
  for (const auto& [name, overloads] : names) {
    out << "- `" << name << "`";
    for (const std::string& overload : overloads) out << (overload.empty() ? " ." : " " + overload);
    out << "\n";
  }
}

void list_by_text(const std::vector<Entry>& entries, Kind kind, std::ostream& out) {
  std::map<std::string, int> texts;
  for (const Entry& entry : entries) {
    if (entry.kind == kind) ++texts[entry.text];
  }
  for (const auto& [text, count] : texts) {
    out << "\n" << text << ":\n\n";
    list_names(by_name(entries, kind, &text), out);
  }
}

void list_derived(const std::vector<Entry>& entries, std::ostream& out) {
  for (const Entry& entry : entries) {
    if (entry.kind == Kind::derived) out << "- `" << entry.op.substr(6) << "` from `" << entry.text.substr(6) << "`\n";
  }
}

}  // namespace

std::string name_of(Kind kind) {
  static const char* names[] = {"implicit", "rule", "derived", "handler", "replicate", "refuse", "factory", "none"};
  return names[static_cast<int>(kind)];
}

std::vector<Entry> table(const std::string& name_space) {
  std::vector<Entry> entries;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind(name_space + "::", 0) != 0) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(name)) entries.push_back(classify(*op));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.op < b.op; });
  return entries;
}

std::string page(const std::vector<Entry>& entries) {
  std::map<Kind, int> counts;
  for (const Entry& entry : entries) ++counts[entry.kind];
  std::ostringstream out;
  out << "# Coverage\n\nHow each `aten::` overload runs on DTensors. Written by `tools/coverage`; a test "
         "compares "
         "it, so that a new\nLibTorch shows as a diff. `.` is the overload without a name.\n\n"
         "| entry | overloads | meaning |\n|---|---|---|\n";
  const std::pair<Kind, const char*> meanings[] = {
      {Kind::implicit, "decomposed by ATen"},
      {Kind::factory, "no tensor operand: creates regular tensors, or DTensors in a MeshScope"},
      {Kind::rule, "a sharding rule of the operator or of its tag"},
      {Kind::derived, "in-place, out=, copy or list form: uses another operator's entry"},
      {Kind::special_kernel, "handled by a special kernel"},
      {Kind::replicate, "runs on replicated operands, for the reason given"},
      {Kind::refuse, "an error that names the reason"},
      {Kind::none, "no entry: runs on replicated operands, with a warning"}};
  for (const auto& [kind, meaning] : meanings) {
    out << "| " << name_of(kind) << " | " << counts[kind] << " | " << meaning << " |\n";
  }
  out << "\n## Replicated\n";
  list_by_text(entries, Kind::replicate, out);
  out << "\n## Refused\n";
  list_by_text(entries, Kind::refuse, out);
  out << "\n## Handlers\n\n";
  list_names(by_name(entries, Kind::special_kernel), out);
  if (counts[Kind::none] != 0) out << "\n## No entry\n\n", list_names(by_name(entries, Kind::none), out);
  out << "\n## Rules\n\n";
  list_names(by_name(entries, Kind::rule), out);
  out << "\n## Derived\n\n";
  list_derived(entries, out);
  out << "\n## Implicit\n\n";
  list_names(by_name(entries, Kind::implicit), out);
  out << "\n## Factories\n\n";
  list_names(by_name(entries, Kind::factory), out);
  return out.str();
}

}  // namespace dtensor::coverage
