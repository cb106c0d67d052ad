// Forms of sums of rows with equal indices: a tree over the positions of the indices, which are unsharded.
#include "sharding_prop/bit_identical/form_table.h"

namespace dtensor {
namespace {

Rule embedding_backward(const OpCall& call, const Rule&) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.boolean("scale_grad_by_freq"), call.info->name(),
                              " with scale_grad_by_freq has no bit-identical form");
  return Rule("...d, ... -> vd").unsharded("...v").kernel("tree_embedding_backward");
}

void check_type(const OpCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(call.dtype(0)), call.info->name(), " of ", call.dtype(0),
                              " has no bit-identical form");
}

Rule index_add(const OpCall& call, const Rule&) {
  check_type(call);
  return Rule(", ~, ~ -> | X[dim!], i!, X[dim=i!] -> X[dim] | X[dim!], , X[dim=_] -> X[dim]").kernel("tree_index_add");
}

Rule scatter_add(const OpCall& call, const Rule&) {
  check_type(call);
  return Rule("X[dim!], X[dim=i!], X[dim=i!] -> X[dim]").kernel("tree_scatter_add");
}

bool is_mask(const Operand& operand) {
  return operand.defined && (operand.dtype == c10::kBool || operand.dtype == c10::kByte);
}

// Factors of the indices are those that operand 0 lacks.
Rule index_put(const OpCall& call, const Rule& ordinary) {
  check_type(call);
  TORCH_CHECK_NOT_IMPLEMENTED(
      call.boolean("accumulate"), call.info->name(),
      " without accumulate has no bit-identical form: which value is written depends on threads");
  const auto first = call.operands.begin() + 1, values = call.operands.end() - 1;
  const bool indexed = std::any_of(first, values, [](const Operand& operand) { return operand.defined; });
  TORCH_CHECK_NOT_IMPLEMENTED(indexed && std::none_of(first, values, is_mask), call.info->name(),
                              " with a mask or without indices has no bit-identical form");
  RuleData data = ordinary.data();
  std::vector<bool> of_self(data.factors.size());
  for (const auto& dim : data.operands.at(0).dims) {
    for (const int factor : dim) of_self.at(static_cast<std::size_t>(factor)) = true;
  }
  for (std::size_t i = 0; i < of_self.size(); ++i) data.factors[i].unsharded |= !of_self[i];
  return Rule(std::move(data)).kernel("tree_index_put");
}

}  // namespace

void add_index_sum_forms(FormTable& table) {
  add_form(table, embedding_backward, {"aten::embedding_dense_backward"});
  add_form(table, index_add, {"aten::index_add"});
  add_form(table, scatter_add, {"aten::scatter_add"});
  add_form(table, index_put,
           {"aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl", "aten::_index_put_impl_"});
}

}  // namespace dtensor
