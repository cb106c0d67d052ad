// Putting tensors together and taking them apart out of place: cat, stack, padding, and the backward of slices.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

Rule::Operands all_operands(const OpArgs& op) {
  Rule::Operands all(static_cast<std::size_t>(op.operand_count()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A 1-d tensor without elements may stand among tensors of any shape.
bool is_legacy_empty(const OpArgs& op, int operand) { return op.sizes(operand) == at::IntArrayRef{0}; }

Rule cat(const OpArgs& op) {
  const auto rank = static_cast<std::int64_t>(op.result(0).sizes.size());
  Rule rule;
  RuleTerm term;
  for (std::int64_t d = 0; d < rank; ++d) term.push_back({rule.factor()});
  for (int i = 0; i < op.operand_count(); ++i)
    is_legacy_empty(op, i) && rank != 1 ? rule.absent_operand() : rule.operand(term);
  if (rank > 0) rule.whole_factor(static_cast<int>(c10::maybe_wrap_dim(op.integer("dim"), rank)));
  return rule.result(term).structural(all_operands(op));
}

Rule stack(const OpArgs& op) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) term.push_back({rule.factor()});
  for (int i = 0; i < op.operand_count(); ++i) rule.operand(term);
  const auto rank = static_cast<std::int64_t>(term.size());
  term.insert(term.begin() + c10::maybe_wrap_dim(op.integer("dim"), rank + 1), RuleDim());
  return rule.result(term).structural(all_operands(op));
}

// Operand 0's dimensions in the result's, which has those in `added` besides; dims in `whole` are cut or moved.
Rule embedded(const OpArgs& op, std::vector<std::int64_t> added, std::vector<std::int64_t> whole) {
  Rule rule;
  RuleTerm in, out;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(op.result(0).sizes.size()); ++d) {
    const int factor = rule.factor();
    out.push_back({factor});
    if (std::find(added.begin(), added.end(), d) == added.end()) in.push_back({factor});
    if (std::find(whole.begin(), whole.end(), d) != whole.end()) rule.whole_factor(factor);
  }
  return rule.operand(in).result(out).linear({0});
}

std::int64_t result_dim(const OpArgs& op, std::string_view name) {
  return c10::maybe_wrap_dim(op.integer(name), static_cast<std::int64_t>(op.result(0).sizes.size()));
}

Rule slice_backward(const OpArgs& op) {
  const std::int64_t dim = result_dim(op, "dim");
  const auto at = static_cast<std::size_t>(dim);
  const bool all = op.sizes(0)[at] == op.result(0).sizes[at];
  return embedded(op, {}, all ? std::vector<std::int64_t>{} : std::vector{dim}).local_size("input_sizes");
}

Rule select_backward(const OpArgs& op) {
  return embedded(op, {result_dim(op, "dim")}, {result_dim(op, "dim")}).local_size("input_sizes");
}

// The diagonal is the last dimension of the gradient, and the window that of an unfold's.
Rule last_added(const OpArgs& op, std::vector<std::int64_t> gone) {
  Rule rule;
  RuleTerm in, out;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(op.result(0).sizes.size()); ++d) {
    out.push_back({rule.factor()});
    if (std::find(gone.begin(), gone.end(), d) == gone.end())
      in.push_back(out.back());
    else
      rule.whole_factor(static_cast<int>(d));
  }
  in.emplace_back();
  return rule.operand(in).result(out).linear({0}).local_size("input_sizes");
}

Rule diagonal_backward(const OpArgs& op) { return last_added(op, {result_dim(op, "dim1"), result_dim(op, "dim2")}); }

Rule unfold_backward(const OpArgs& op) {
  if (op.result(0).sizes.empty()) return Rule("_ -> ");
  Rule rule;
  RuleTerm in, out;
  const std::int64_t dim = result_dim(op, "dim");
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(op.result(0).sizes.size()); ++d) {
    out.push_back({rule.factor()});
    in.push_back(d == dim ? RuleDim() : out.back());
  }
  in.emplace_back();
  return rule.whole_factor(static_cast<int>(dim)).operand(in).result(out).linear({0}).local_size("input_sizes");
}

Rule with_whole(const OpArgs& op, const std::vector<std::int64_t>& dims) {
  Rule rule = same(op);
  for (const std::int64_t d : dims) rule.whole(d);
  return rule;
}

Rule flip(const OpArgs& op) {
  const bool none = op.integers("dims").empty();
  return with_whole(op, none ? std::vector<std::int64_t>{} : op.dims("dims")).structural({0});
}

Rule roll(const OpArgs& op) { return with_whole(op, op.dims("dims")).structural({0}); }

Rule repeat(const OpArgs& op) {
  const std::vector<std::int64_t> repeats = op.integers("repeats");
  Rule rule;
  RuleTerm in, out(repeats.size());
  const std::size_t added = repeats.size() - op.sizes(0).size();
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) {
    in.push_back({rule.factor()});
    if (repeats[added + d] == 1)
      out[added + d] = in.back();
    else
      rule.whole_factor(static_cast<int>(d));
  }
  return rule.operand(in).result(out).structural({0});
}

Rule pad(const OpArgs& op) {
  const std::vector<std::int64_t> amounts = op.integers("pad");
  std::vector<std::int64_t> padded;
  const auto rank = static_cast<std::int64_t>(op.sizes(0).size());
  for (std::size_t i = 0; i < amounts.size(); ++i) {
    if (amounts[i] != 0) padded.push_back(rank - 1 - static_cast<std::int64_t>(i / 2));
  }
  return with_whole(op, padded);
}

// Only the last two dimensions have a diagonal.
Rule triangle(const OpArgs& op) {
  const auto rank = static_cast<std::int64_t>(op.sizes(0).size());
  return with_whole(op, {rank - 2, rank - 1}).linear({0});
}

// A src that is shorter along the dimension has a different factor there, so the dimension is whole.
Rule scatter_slice(const OpArgs& op) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) term.push_back({rule.factor()});
  rule.operand(term).operand(term).result(term).linear({0, 1});
  return op.sizes(0).empty() || op.sizes(0) == op.sizes(1) ? rule : rule.whole(op.dim("dim"));
}

Rule glu(const OpArgs& op) {
  Rule rule;
  RuleTerm term;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) term.push_back({rule.factor()});
  for (int i = 0; i < op.operand_count(); ++i) rule.operand(term);
  return rule.result(term).whole_factor(static_cast<int>(op.dim("dim")));
}

}  // namespace

void add_assembly_rules(RuleBook& book) {
  book.rule("aten::cat", cat);
  book.rule("aten::_cat", cat);
  book.rule("aten::stack", stack);
  book.rule("aten::_stack", stack);
  book.rule("aten::slice_backward", slice_backward);
  book.rule("aten::select_backward", select_backward);
  book.rule("aten::diagonal_backward", diagonal_backward);
  book.rule("aten::unfold_backward", unfold_backward).outputs([](const OpArgs& op) {
    return std::vector{dense_meta(op.integers("input_sizes"), op.dtype(0))};
  });
  book.rule("aten::slice_scatter", scatter_slice);
  book.rule("aten::flip", flip);
  book.rule("aten::roll", roll);
  book.rule("aten::repeat", repeat);
  book.rule("aten::constant_pad_nd", pad);
  book.rule("aten::tril", triangle);
  book.rule("aten::triu", triangle);
  book.rule("aten::glu", glu);
  book.rule("aten::glu_backward", glu).outputs([](const OpArgs& op) {
    return std::vector{dense_meta(op.sizes(1), op.dtype(1))};
  });
}

}  // namespace dtensor
