// The value behind a rule and its fluent interface.
#include "dtensor/rule.h"

#include "sharding_prop/rule_data.h"

namespace dtensor {
namespace {

void add_group(RuleData& data, const Rule::Operands& operands, ReduceOps ops) {
  if (!operands.empty()) data.groups.push_back({operands, ops});
}

template <class Fn>
void each_letter(RuleData& data, std::string_view letters, Fn fn) {
  for (const char letter : letters) {
    bool found = false;
    for (Factor& factor : data.factors) {
      if (factor.name.size() == 1 && factor.name[0] == letter) fn(factor), found = true;
    }
    TORCH_CHECK(found, "rule '", data.text, "' has no factor '", letter, "'");
  }
}

template <class Fn>
void each_factor_of_dim(RuleData& data, std::int64_t dim, Fn fn) {
  const RuleTerm& dims = data.operands.at(0).dims;
  if (static_cast<std::size_t>(dim) >= dims.size()) return;  // dimension 0 of a 0-dim tensor
  for (const int factor : dims[static_cast<std::size_t>(dim)]) {
    fn(data.factors[static_cast<std::size_t>(factor)]);
  }
}

}  // namespace

Rule::Rule() : data_(std::make_shared<RuleData>()) {}
Rule::Rule(std::string_view text) : Rule() { parse_rule(text, *data_); }

Rule& Rule::linear(Operands a, Operands b, Operands c, Operands d) {
  for (const Operands& operands : {a, b, c, d}) add_group(*data_, operands, kLinearOps);
  return *this;
}

Rule& Rule::linear_sum(Operands a) { return add_group(*data_, a, bit(ReduceOp::sum)), *this; }
Rule& Rule::monotone(Operands a, ReduceOp op) { return add_group(*data_, a, bit(op)), *this; }
Rule& Rule::structural(Operands a) { return add_group(*data_, a, kAnyOp), *this; }

Rule& Rule::whole(std::string_view letters) {
  each_letter(*data_, letters, [](Factor& factor) { factor.whole = true; });
  return *this;
}

Rule& Rule::whole(std::int64_t dim) {
  each_factor_of_dim(*data_, dim, [](Factor& factor) { factor.whole = true; });
  return *this;
}

Rule& Rule::reduce(ReduceOp op) { return data_->reduce = op, *this; }
Rule& Rule::nonempty() { return data_->nonempty = true, *this; }

Rule& Rule::nonempty(std::string_view letters) {
  each_letter(*data_, letters, [](Factor& factor) { factor.smallest = std::max(factor.smallest, 1); });
  return *this;
}

Rule& Rule::handled(std::string_view letters, std::string kernel) {
  each_letter(*data_, letters, [](Factor& factor) { factor.handled = true; });
  data_->handler = std::move(kernel);
  return *this;
}

Rule& Rule::handled_dims(at::IntArrayRef dims, std::string kernel) {
  for (const std::int64_t dim : dims) {
    each_factor_of_dim(*data_, dim, [](Factor& factor) { factor.handled = true, factor.whole = false; });
  }
  data_->handler = std::move(kernel);
  return *this;
}

Rule& Rule::handled_factor(int factor, std::string kernel) {
  data_->factors.at(static_cast<std::size_t>(factor)).handled = true;
  data_->handler = std::move(kernel);
  return *this;
}

Rule& Rule::handled_gives(ReduceOp op) {
  data_->handled_result = HandledResult::partial;
  data_->handled_op = op;
  return *this;
}

Rule& Rule::handled_gives_replicate() { return data_->handled_result = HandledResult::replicate, *this; }
Rule& Rule::handled_replicates(int result) { return data_->handled_replicates |= 1u << result, *this; }

Rule& Rule::kernel(std::string name) {
  data_->handler = std::move(name);
  data_->handler_always = true;
  return *this;
}

Rule& Rule::once(int operand) { return data_->operands.at(static_cast<std::size_t>(operand)).once = true, *this; }
Rule& Rule::writes(Operands operands) {
  for (const int i : operands) data_->written |= 1u << i;
  return *this;
}

Rule& Rule::unread(int operand) { return data_->unread |= 1u << operand, *this; }
Rule& Rule::ignored(int operand) { return data_->ignored |= 1u << operand, *this; }

Rule& Rule::local_strides(std::string arg, int result) {
  data_->stride_patches.emplace_back(std::move(arg), result);
  return *this;
}

Rule& Rule::local_size(std::string arg, int result) {
  data_->size_patches.emplace_back(std::move(arg), result);
  return *this;
}

Rule& Rule::patch(std::string arg, c10::IValue value) {
  data_->patches.emplace_back(std::move(arg), std::move(value));
  return *this;
}

Rule& Rule::absent_result() { return data_->results.emplace_back().absent = true, *this; }

Rule& Rule::sees_storage() { return data_->storage = StorageView::shard, *this; }
Rule& Rule::keeps_storage() { return data_->storage = StorageView::keep, *this; }
Rule& Rule::reads_scalars() { return data_->reads_scalars = true, *this; }
Rule& Rule::outputs(Outputs fn) { return data_->outputs = std::move(fn), *this; }
Rule& Rule::no_meta() { return data_->letters_give_sizes = true, *this; }

int Rule::factor(std::string name, std::int64_t size) {
  const int index = static_cast<int>(data_->factors.size());
  data_->factors.push_back({name.empty() ? "d" + std::to_string(index) : std::move(name)});
  data_->factors.back().size = size;
  return index;
}

Rule& Rule::operand(RuleTerm term) {
  data_->operands.push_back({});
  data_->operands.back().dims = std::move(term);
  return *this;
}

Rule& Rule::absent_operand() {
  data_->operands.push_back({});
  data_->operands.back().absent = true;
  return *this;
}

Rule& Rule::result(RuleTerm term) {
  data_->results.push_back({});
  data_->results.back().dims = std::move(term);
  return *this;
}

Rule& Rule::whole_factor(int factor) {
  data_->factors.at(static_cast<std::size_t>(factor)).whole = true;
  return *this;
}

Rule& Rule::unit_free(int factor) {
  data_->factors.at(static_cast<std::size_t>(factor)).smallest = 2;
  return *this;
}

}  // namespace dtensor
