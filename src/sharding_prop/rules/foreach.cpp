// List operators, decided per position: elementwise by default, those that keep a Partial, norms of lists, and
// optimizers, whose step counts are numbers without placements.
#include "sharding_prop/operators/op_call.h"
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

Rule elementwise() { return Rule("...* -> ...*").foreach_op(); }

// Whether operand i is one number for all positions (a learning rate, a scale), with any number of dimensions.
bool is_shared_number(const OpArgs& op, int i) {
  const Operand& operand = static_cast<const OpCall&>(op).operands[static_cast<std::size_t>(i)];
  return operand.list_index < 0 && c10::multiply_integers(operand.sizes) == 1;
}

// Step counts, and operands whose sizes differ from the parameter's, are numbers.
Rule optimizer(const OpArgs& op) {
  std::string text;
  for (int i = 0; i < op.operand_count(); ++i) {
    const bool number = op.operand_arg(i) == "state_steps" || (op.defined(i) && is_shared_number(op, i));
    const bool state = !number && op.defined(i) && op.sizes(i) == op.sizes(0);
    // The kernels assume that these have as many elements as the parameter.
    TORCH_CHECK(state || number || !op.defined(i) || op.sizes(i).empty(), "a fused optimizer's `", op.operand_arg(i),
                "` of sizes ", op.sizes(i), " does not fit a parameter of sizes ", op.sizes(0));
    text += (i == 0 ? "" : ", ") + std::string(state ? "X" : "~");
  }
  return Rule(text + " -> X?*");
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

void add_foreach_rules(RuleBook& book) {
  book.rule("aten::_foreach_*", elementwise());
  add_linear(book);
  for (const char* op : {"aten::_foreach_zero", "aten::_foreach_zero_"}) book.rule(op, elementwise().structural({0}));
  for (const char* op : {"aten::_foreach_copy", "aten::_foreach_copy_"}) {
    book.rule(op, elementwise().structural({0, 1}));
  }
  book.rule("aten::_foreach_clone", elementwise().structural({0}).keeps_storage_shards());
  book.rule("aten::_foreach_norm", "X -> ")
      .foreach_op()
      .sharded_by_kernel("X", "foreach_norm")
      .kernel_gives_replicate()
      .reads_scalars();
  book.rule("aten::_foreach_powsum", "X -> ").foreach_op();
  book.rule("aten::_foreach_max", "X -> ").foreach_op().reduce(ReduceOp::max).nonempty("X");
  book.rule("aten::_foreach_mm", "mk, kn -> mn").foreach_op().linear({0}, {1});
  for (const char* op : {"aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd", "aten::_fused_adagrad",
                         "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"}) {
    book.rule(op, optimizer, "X for what has the parameter's sizes, else ~").foreach_op();
  }
}

}  // namespace dtensor
