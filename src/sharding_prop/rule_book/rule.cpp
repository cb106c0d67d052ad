// The data of a rule and its fluent interface.
#include "dtensor/rule.h"

#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {
namespace {

void add_group(RuleData& data, const Rule::Operands& operands, ReduceOps ops) {
  if (!operands.empty()) data.groups.push_back({operands, ops});
}

// Calls fn for each factor in `names`: the name of a slot, or else letters of factors and packs, and '...'.
template <class Fn>
void each_named(RuleData& data, std::string_view names, Fn fn) {
  const auto named = [&](std::string_view name) {
    bool found = false;
    const auto visit = [&](Factor& factor) {
      if (factor.name == name) fn(factor), found = true;
    };
    for (Factor& factor : data.factors) visit(factor);
    for (Pack& pack : data.packs) visit(pack.each);
    if (name == "...") fn(data.batch), found = true;
    return found;
  };
  if (named(names)) return;
  while (!names.empty()) {
    const std::size_t length = names.substr(0, 3) == "..." ? 3 : 1;
    TORCH_CHECK(named(names.substr(0, length)), "rule '", data.text, "' has no factor '", std::string(names), "'");
    names.remove_prefix(length);
  }
}

}  // namespace

Rule::Rule() : data_(std::make_shared<RuleData>()) {}
Rule::Rule(std::string_view text) : Rule() { parse_rule(text, edit()); }

Rule::Rule(RuleData data) : data_(std::make_shared<RuleData>(std::move(data))) {}

RuleData& Rule::edit() {
  if (data_.use_count() > 1) data_ = std::make_shared<RuleData>(*data_);
  return *data_;
}

Rule& Rule::linear(Operands a, Operands b, Operands c, Operands d) {
  for (const Operands& operands : {a, b, c, d}) add_group(edit(), operands, kLinearOps);
  return *this;
}

Rule& Rule::monotone(Operands a, ReduceOp op) { return add_group(edit(), a, bit(op)), *this; }
Rule& Rule::structural() { return structural({kAllOperands}); }
Rule& Rule::structural(Operands a) { return add_group(edit(), a, kAnyOp), *this; }

Rule& Rule::unsharded(std::string_view names) {
  each_named(edit(), names, [](Factor& factor) { factor.unsharded = true; });
  return *this;
}

Rule& Rule::reduce(ReduceOp op) { return edit().reduce = op, *this; }

Rule& Rule::nonempty(std::string_view names) {
  each_named(edit(), names, [](Factor& factor) { factor.nonempty = true; });
  return *this;
}

Rule& Rule::sharded_by_kernel(std::string_view names, std::string kernel) {
  each_named(edit(), names, [](Factor& factor) { factor.sharded_by_kernel = true; });
  edit().local_kernel = std::move(kernel);
  return *this;
}

Rule& Rule::kernel_gives(ReduceOp op) {
  edit().kernel_result = KernelResult::partial;
  edit().kernel_reduce_op = op;
  return *this;
}

Rule& Rule::kernel_gives_replicate() { return edit().kernel_result = KernelResult::replicate, *this; }
Rule& Rule::kernel_gives_replicate_scalars() { return edit().kernel_result = KernelResult::replicate_scalars, *this; }

Rule& Rule::kernel(std::string name) {
  edit().local_kernel = std::move(name);
  edit().local_kernel_always = true;
  return *this;
}

Rule& Rule::writes(Operands operands) {
  for (const int i : operands) edit().written |= 1u << i;
  return *this;
}

Rule& Rule::values_unused(int operand) { return edit().values_unused |= 1u << operand, *this; }
Rule& Rule::ignored(int operand) { return edit().ignored |= 1u << operand, *this; }

Rule& Rule::local_strides(std::string arg, int result) {
  edit().stride_patches.emplace_back(std::move(arg), result);
  return *this;
}

Rule& Rule::local_size(std::string arg, int result) {
  edit().size_patches.emplace_back(std::move(arg), result);
  return *this;
}

Rule& Rule::reads_storage_shards() { return edit().storage = StorageView::shard, *this; }
Rule& Rule::keeps_storage_shards() { return edit().storage = StorageView::keep, *this; }
Rule& Rule::reads_scalars() { return edit().reads_scalars = true, *this; }
Rule& Rule::outputs(Outputs fn) { return edit().outputs = std::move(fn), *this; }
Rule& Rule::no_meta() { return edit().sizes_from_factors = true, *this; }
Rule& Rule::foreach_op() { return edit().foreach_op = true, *this; }
Rule& Rule::overwrites() { return edit().overwrites = true, *this; }
Rule& Rule::values_unused_if_zero(std::string number) {
  return edit().values_unused_if_zero = std::move(number), *this;
}
Rule& Rule::follows_parameter_placement() { return edit().follows_parameter_placement = true, *this; }
Rule& Rule::uninitialized_results() { return edit().uninitialized_results = true, *this; }
Rule& Rule::saved_for_backward() { return edit().saved_for_backward = true, *this; }
Rule& Rule::not_random() { return edit().not_random = true, *this; }
Rule& Rule::takes_saved_results() { return edit().takes_saved_results = true, *this; }
Rule& Rule::restricts_values() { return edit().restricts_values = true, *this; }

Rule& Rule::indexes(std::string along, bool from_end, std::string ignored) {
  edit().indexing = {std::move(along), from_end, std::move(ignored)};
  return *this;
}

Rule& Rule::dims(std::string name, Dims fn) {
  edit().dims.emplace_back(std::move(name), std::move(fn));
  return *this;
}

int Rule::factor(std::string name, std::int64_t size) {
  const int index = static_cast<int>(edit().factors.size());
  edit().factors.push_back({name.empty() ? "d" + std::to_string(index) : std::move(name)});
  edit().factors.back().size = size;
  return index;
}

Rule& Rule::operand(Term term) {
  edit().operands.push_back({});
  edit().operands.back().dims = std::move(term);
  return *this;
}

Rule& Rule::result(Term term) {
  edit().results.push_back({});
  edit().results.back().dims = std::move(term);
  return *this;
}

Rule& Rule::unsharded_factor(int factor) {
  edit().factors.at(static_cast<std::size_t>(factor)).unsharded = true;
  return *this;
}

}  // namespace dtensor
