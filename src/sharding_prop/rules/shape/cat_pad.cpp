// Concatenation and splitting out of place: cat, stack, padding, and the backward of slices.
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

void add_moves(RuleBook& book) {
  // A 1-d tensor without elements may be in a list with tensors of any shape.
  for (const char* op : {"aten::cat", "aten::_cat"}) {
    book.rule(op, elastic(Rule("X[dim=r]?* -> X[dim=r]").structural().sharded_by_kernel("r", "cat_split"), "r"));
  }
  for (const char* op : {"aten::stack", "aten::_stack"}) book.rule(op, "X* -> X[dim=_]").structural();
  const auto flipped = [](const OpArgs& op) {
    return op.integers("dims").empty() ? std::vector<std::int64_t>{} : op.dims("dims");
  };
  book.rule("aten::flip", "X[flipped] -> X[flipped]")
      .structural({0})
      .sharded_by_kernel("flipped", "flip_split")
      .dims("flipped", flipped)
      .outputs([](const OpArgs& op) { return std::vector{preserved_meta(op)}; });
  // Without dimensions it shifts the flattened tensor.
  const auto roll = [](const OpArgs& op) {
    Rule rule = Rule("X[dims] -> X[dims]").structural({0});
    return op.integers("dims").empty() ? rule.unsharded("dims") : rule.sharded_by_kernel("dims", "roll_split");
  };
  book.rule("aten::roll", roll, "X[dims] -> X[dims], split if dims are given");
  book.rule("aten::repeat", "... -> ...").structural({0});
  book.rule(
      "aten::constant_pad_nd",
      elastic(Rule("X[padded] -> X[padded]").sharded_by_kernel("padded", "pad_split").dims("padded", padded_by("pad")),
              "padded"));
  for (const char* op : {"aten::tril", "aten::triu"}) book.rule(op, "Xa!b! -> Xab").linear({0});
  book.rule("aten::glu", "X[dim!] -> X[dim]");
}

void add_backward(RuleBook& book) {
  const auto slice = [](const OpArgs& op) {
    Rule rule = Rule("X[dim] -> X[dim]").linear({0}).local_size("input_sizes");
    if (op.sizes(0) == op.integers("input_sizes")) return rule;
    return elastic(rule.sharded_by_kernel("dim", "slice_split_backward"), "dim");
  };
  book.rule("aten::slice_backward", slice, "X[dim] -> X[dim], by a kernel unless the slice is everything");
  book.rule("aten::select_backward", "X -> X[dim]")
      .linear({0})
      .local_size("input_sizes")
      .sharded_by_kernel("dim", "select_row_backward")
      .follows_parameter_placement();
  // The diagonal is the last dimension of the gradient, and so is the window of unfold.
  book.rule("aten::diagonal_backward", "X_ -> X[dim1!,dim2!]").linear({0}).local_size("input_sizes");
  book.rule("aten::unfold_backward", "X[dim=_]_ -> X[dim!]")
      .linear({0})
      .local_size("input_sizes")
      .outputs([](const OpArgs& op) {
        const auto rank = op.integers("input_sizes").size();
        TORCH_CHECK(op.sizes(0).size() == rank + 1, "unfold_backward: a gradient of sizes ", op.sizes(0),
                    " does not belong to an input of ", rank, " dimensions");
        return std::vector{dense_meta(op.integers("input_sizes"), op.dtype(0))};
      });
  book.rule("aten::glu_backward", "X[dim!]* -> X[dim]").outputs([](const OpArgs& op) {
    return like_operands(op, {1});
  });
}

}  // namespace

void add_cat_pad_rules(RuleBook& book) {
  add_moves(book);
  add_backward(book);
  const auto scatter = [](const OpArgs& op) {
    Rule rule = Rule("X[dim], X[dim] -> X[dim]").linear({0, 1});
    if (op.operand_count() > 2) return rule.unsharded("dim");  // with an out= tensor
    if (op.sizes(0) == op.sizes(1)) return rule;
    return elastic(rule.sharded_by_kernel("dim", "slice_scatter_split"), "dim");
  };
  book.rule("aten::slice_scatter", scatter, "X[dim], X[dim] -> X[dim], by a kernel unless the slice is everything");
  book.rule("aten::select_scatter", "X[dim!], X -> X[dim]").linear({0, 1});
  book.rule("aten::diagonal_scatter", "X[dim1!,dim2!], X_ -> X[dim1,dim2]").linear({0, 1});
  book.rule("aten::diag_embed", "X_ -> X[dim1=_,dim2=_]").linear({0});
}

}  // namespace dtensor
