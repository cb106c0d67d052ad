// Finds an operator's rule: its own, that of every overload of its name, its base operator's (in-place, out=, _copy,
// list operators), its tag's, or none. Reads the aliasing from the schema.
#include "sharding_prop/resolve.h"

#include <shared_mutex>

namespace dtensor {
namespace {

struct Memo {
  std::shared_mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, OpInfoPtr> infos;
};

Memo& memo() {
  static auto* instance = new Memo;
  return *instance;
}

bool starts_with(const std::string& text, std::string_view prefix) { return text.rfind(prefix, 0) == 0; }

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() > suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool is_tensor_type(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  if (type.kind() == c10::TypeKind::OptionalType || type.kind() == c10::TypeKind::ListType) {
    return is_tensor_type(*type.containedType(0));
  }
  return false;
}

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

int aliased_arg(const c10::FunctionSchema& schema, const c10::AliasInfo& info) {
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* other = arguments[i].alias_info();
    if (other == nullptr) continue;
    for (const c10::Symbol& set : info.beforeSets()) {
      if (other->beforeSets().count(set) != 0) return static_cast<int>(i);
    }
  }
  return -1;
}

ReturnAlias read_return(const c10::FunctionSchema& schema, const c10::Argument& value) {
  ReturnAlias alias;
  alias.is_tensor = is_tensor_type(*value.type());
  alias.is_list = alias.is_tensor && value.type()->kind() == c10::TypeKind::ListType;
  const c10::AliasInfo* info = value.alias_info();
  // Of a list, what its entries are: Tensor(a)[].
  if (info != nullptr && info->beforeSets().empty() && !info->containedTypes().empty()) {
    info = &info->containedTypes()[0];
  }
  if (info != nullptr) {
    alias.arg = aliased_arg(schema, *info);
    alias.write = info->isWrite();
  }
  return alias;
}

void read_aliases(const c10::OperatorHandle& op, OpInfo& info) {
  const c10::FunctionSchema& schema = op.schema();
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!is_write(argument) || !is_tensor_type(*argument.type())) continue;
    info.written_args.push_back(static_cast<int>(i));
    if (argument.is_out()) info.out_args.push_back(static_cast<int>(i));
  }
  for (const c10::Argument& value : schema.returns()) {
    info.returns.push_back(read_return(schema, value));
    info.returns_tensor |= info.returns.back().is_tensor;
  }
  info.inplace = info.written_args.size() > info.out_args.size();
  const std::string& name = schema.name();
  info.is_list = starts_with(name, "aten::_foreach_") || starts_with(name, "aten::_fused_ada") ||
                 starts_with(name, "aten::_fused_sgd");
  info.inplace_view = op.hasTag(at::Tag::inplace_view);
  info.dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  info.random = op.hasTag(at::Tag::nondeterministic_seeded);
}

// All registered operators by name; read once, since a base operator comes with the library that derives from it.
const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  static const auto* table = [] {
    auto* map = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) (*map)[op.name].push_back(op);
    return map;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto it = table->find(name);
  return it == table->end() ? none : it->second;
}

const c10::Argument* argument_named(const c10::FunctionSchema& schema, const std::string& name) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == name) return &argument;
  }
  return nullptr;
}

// Whether `base` takes what `derived` takes, but for out arguments and for options with defaults (dtype, layout, ...).
bool same_inputs(const c10::FunctionSchema& base, const c10::FunctionSchema& derived, const OpInfo& info) {
  for (std::size_t i = 0; i < derived.arguments().size(); ++i) {
    if (info.is_out(static_cast<int>(i))) continue;
    const c10::Argument* other = argument_named(base, derived.arguments()[i].name());
    if (other == nullptr || other->is_out() || *other->type() != *derived.arguments()[i].type()) return false;
  }
  return std::all_of(base.arguments().begin(), base.arguments().end(), [&](const c10::Argument& argument) {
    return argument.default_value().has_value() || argument_named(derived, argument.name()) != nullptr;
  });
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::string base_name(const c10::FunctionSchema& schema, const OpInfo& info) {
  const std::string& name = schema.name();
  if (info.inplace && ends_with(name, "_") && !ends_with(name, "__")) return name.substr(0, name.size() - 1);
  if (!info.out_args.empty()) return name;
  if (ends_with(name, "_copy")) return name.substr(0, name.size() - 5);
  return {};
}

RuleEntryPtr find_derived(const c10::FunctionSchema& schema, OpInfo& info, const std::string& base) {
  for (const c10::OperatorName& candidate : overloads_of(base)) {
    if (candidate == schema.operator_name()) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(candidate);
    if (!handle || !same_inputs(handle->schema(), schema, info)) continue;
    info.derived_from = full_name(candidate);
    if (auto entry = find_entry(info.derived_from)) return entry;
    if (auto entry = find_entry(base)) return entry;
    if (auto entry = find_tag_entry(handle->getTags())) return entry;
  }
  info.derived_from = base;
  // `split_copy.Tensor_out` derives from `split_copy.Tensor` and so from `split.Tensor`.
  if (ends_with(base, "_copy")) return find_derived(schema, info, base.substr(0, base.size() - 5));
  return find_entry(base);
}

RuleEntryPtr find_rule(const c10::OperatorHandle& op, OpInfo& info) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string base = base_name(schema, info);
  if (auto entry = find_entry(full_name(schema.operator_name()))) return entry;
  if (base != schema.name()) {
    if (auto entry = find_entry(schema.name())) return entry;
  }
  if (!base.empty()) {
    if (auto entry = find_derived(schema, info, base)) return entry;
    info.derived_from.clear();
  }
  if (auto entry = find_tag_entry(op.getTags())) return entry;
  return info.is_list ? find_entry("aten::_foreach_*") : nullptr;
}

}  // namespace

bool OpInfo::writes(int arg) const {
  return std::find(written_args.begin(), written_args.end(), arg) != written_args.end();
}

bool OpInfo::is_out(int arg) const { return std::find(out_args.begin(), out_args.end(), arg) != out_args.end(); }

OpInfoPtr resolve(const c10::OperatorHandle& op) {
  RuleBook::get();
  const c10::FunctionSchema* key = &op.schema();
  {
    const std::shared_lock lock(memo().mutex);
    const auto it = memo().infos.find(key);
    if (it != memo().infos.end()) return it->second;
  }
  auto info = std::make_shared<OpInfo>();
  read_aliases(op, *info);
  info->entry = find_rule(op, *info);
  if (!info->entry) info->entry = std::make_shared<RuleEntry>();
  const std::unique_lock lock(memo().mutex);
  return memo().infos[key] = std::move(info);
}

void forget_resolved() {
  const std::unique_lock lock(memo().mutex);
  memo().infos.clear();
}

Rule rule_for(const OpInfo& info, const OpCall& call) {
  const bool unknown_sizes = call.runs_whole || (!call.outputs.empty() && call.outputs[0].from_local);
  if (info.entry->source != RuleSource::rule || unknown_sizes) return Rule();
  return expand_packs(info.entry->function ? info.entry->function(call) : info.entry->constant, call);
}

}  // namespace dtensor
