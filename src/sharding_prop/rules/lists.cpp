// List operators, decided per position: elementwise by default; which keep a Partial; norms of lists; optimizers, where
// the step counts are numbers that no placement touches.
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

Rule elementwise() { return Rule("...* -> ...*"); }

Rule reduced_to_number(const OpArgs& op) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) term.push_back({rule.factor()});
  return rule.operand(term).result({});
}

Rule all_dims_handled(const OpArgs& op, const char* kernel) {
  std::vector<std::int64_t> dims(op.sizes(0).size());
  std::iota(dims.begin(), dims.end(), 0);
  return reduced_to_number(op).handled_dims(dims, kernel).handled_gives_replicate();
}

Rule optimizer(const OpArgs& op) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) term.push_back({rule.factor()});
  for (int i = 0; i < op.operand_count(); ++i) {
    const bool state = op.operand_arg(i) != "state_steps" && op.defined(i) && op.sizes(i) == op.sizes(0);
    state ? rule.operand(term) : rule.absent_operand();
  }
  for (int r = 0; r < op.result_count(); ++r) {
    op.result(r).sizes == op.sizes(0) ? rule.result(term) : rule.result({});
  }
  return rule;
}

void add_linear(RuleBook& book) {
  for (const char* op : {"aten::_foreach_add.List", "aten::_foreach_sub.List", "aten::_foreach_lerp.Scalar",
                         "aten::_foreach_lerp.ScalarList"}) {
    book.rule(op, elementwise().linear({0, 1}));
  }
  book.rule("aten::_foreach_mul.List", elementwise().linear({0}, {1}));
  for (const char* op : {"aten::_foreach_mul.Scalar", "aten::_foreach_mul.ScalarList", "aten::_foreach_mul.Tensor",
                         "aten::_foreach_div.Scalar", "aten::_foreach_div.ScalarList", "aten::_foreach_div.Tensor",
                         "aten::_foreach_div.List", "aten::_foreach_neg"}) {
    book.rule(op, elementwise().linear({0}));
  }
  for (const char* overload : {"Scalar", "ScalarList", "Tensor"}) {
    book.rule(std::string("aten::_foreach_addcmul.") + overload, elementwise().linear({0, 1}, {0, 2}));
    book.rule(std::string("aten::_foreach_addcdiv.") + overload, elementwise().linear({0, 1}));
  }
}

}  // namespace

void add_list_rules(RuleBook& book) {
  book.rule("aten::_foreach_*", elementwise());
  add_linear(book);
  for (const char* op : {"aten::_foreach_zero", "aten::_foreach_zero_"}) book.rule(op, elementwise().structural({0}));
  for (const char* op : {"aten::_foreach_copy", "aten::_foreach_copy_"}) {
    book.rule(op, elementwise().structural({0, 1}));
  }
  book.rule("aten::_foreach_clone", elementwise().structural({0}).keeps_storage());
  book.rule("aten::_foreach_norm", [](const OpArgs& op) { return all_dims_handled(op, "foreach_norm"); })
      .reads_scalars();
  book.rule("aten::_foreach_powsum", reduced_to_number);
  book.rule("aten::_foreach_max",
            [](const OpArgs& op) { return reduced_to_number(op).reduce(ReduceOp::max).nonempty(); });
  book.rule("aten::_foreach_mm", "mk, kn -> mn").linear({0}, {1});
  for (const char* op : {"aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd", "aten::_fused_adagrad",
                         "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"}) {
    book.rule(op, optimizer);
  }
}

}  // namespace dtensor
