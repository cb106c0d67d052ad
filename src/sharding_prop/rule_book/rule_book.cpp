// The rules by operator name and by tag.
#include <shared_mutex>

#include "sharding_prop/rule_book/resolve.h"
#include "sharding_prop/rule_book/rule_list.h"
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

struct Tables {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<RuleEntry>> by_name;
  std::vector<std::shared_ptr<RuleEntry>> replaced;  // kept alive, since rule() returned references to them
  std::vector<std::pair<at::Tag, RuleEntryPtr>> by_tag;
};

Tables& tables() {
  static auto* instance = new Tables;
  return *instance;
}

RuleEntry& put(const std::string& op, std::shared_ptr<RuleEntry> entry) {
  const std::unique_lock lock(tables().mutex);
  ++book_version;
  auto& place = tables().by_name[op];
  if (place != nullptr) tables().replaced.push_back(std::move(place));
  return *(place = std::move(entry));
}

std::shared_ptr<RuleEntry> entry_because(RuleSource source, std::string why) {
  auto entry = std::make_shared<RuleEntry>();
  entry->source = source;
  entry->why = std::move(why);
  return entry;
}

}  // namespace

RuleBook::RuleBook() = default;

RuleBook& RuleBook::get() {
  static RuleBook* book = [] {
    static RuleBook instance;
    add_unsupported_rules(instance);  // first, so that rules of the families replace these entries
    for (auto* add : {add_pointwise_rules, add_matmul_rules, add_reductions_rules, add_views_rules, add_cat_pad_rules,
                      add_indexing_rules, add_like_factories_rules, add_foreach_rules, add_losses_rules,
                      add_norms_rules, add_attention_rules, add_random_rules, add_linalg_rules, add_pooling_rules,
                      add_convolution_rules, add_transforms_rules, add_fused_rules}) {
      add(instance);
    }
    return &instance;
  }();
  return *book;
}

Rule& RuleBook::rule(const std::string& op, Rule rule) {
  auto entry = entry_because(RuleSource::rule, "");
  entry->constant = std::move(rule);
  return put(op, std::move(entry)).constant;
}

Rule& RuleBook::rule(const std::string& op, Rule::Function function, std::string about) {
  auto entry = entry_because(RuleSource::rule, "");
  entry->function = std::move(function);
  RuleData properties;
  properties.about = std::move(about);
  entry->constant = Rule(std::move(properties));
  return put(op, std::move(entry)).constant;
}

void RuleBook::for_tag(at::Tag tag, Rule::Function function) {
  auto entry = entry_because(RuleSource::rule, "");
  entry->function = std::move(function);
  const std::unique_lock lock(tables().mutex);
  ++book_version;
  tables().by_tag.emplace_back(tag, std::move(entry));
}

void RuleBook::replicate(const std::string& op, std::string why) {
  put(op, entry_because(RuleSource::replicate, std::move(why)));
}

void RuleBook::refuse(const std::string& op, std::string why) {
  put(op, entry_because(RuleSource::refuse, std::move(why)));
}

std::vector<std::string> rule_strings() {
  RuleBook::get();
  const std::shared_lock lock(tables().mutex);
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, const RuleEntry& entry) {
    if (entry.source == RuleSource::replicate) lines.push_back(name + ": replicated, " + entry.why);
    if (entry.source == RuleSource::rule) lines.push_back(name + ": " + entry.constant.str());
  };
  for (const auto& [name, entry] : tables().by_name) add(name, *entry);
  for (const auto& [tag, entry] : tables().by_tag) {
    add(tag == at::Tag::pointwise ? "tag pointwise" : "tag " + std::to_string(static_cast<int>(tag)), *entry);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

RuleEntryPtr find_rule_entry(const std::string& name) {
  RuleBook::get();
  const std::shared_lock lock(tables().mutex);
  const auto it = tables().by_name.find(name);
  return it == tables().by_name.end() ? nullptr : it->second;
}

RuleEntryPtr find_rule_entry_by_tag(c10::ArrayRef<at::Tag> tags) {
  RuleBook::get();
  const std::shared_lock lock(tables().mutex);
  for (const auto& [tag, entry] : tables().by_tag) {
    if (std::find(tags.begin(), tags.end(), tag) != tags.end()) return entry;
  }
  return nullptr;
}

}  // namespace dtensor
