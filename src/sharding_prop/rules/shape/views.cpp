// Views and slicing: the correspondence of dimensions of operand and result. Partials of any kind are preserved. A
// sliced dimension has another size in the result, so rows move if it is sharded.
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

using Dims = std::vector<std::int64_t>;

constexpr const char* kParts = "X[dim] -> X[dim]*, by a kernel unless the part is everything";

Rule view_rule(Rule rule) { return rule.structural({0}).keeps_storage_shards(); }

// For example "abc -> cab".
Rule permute(const OpArgs& op) {
  std::string in, out;
  for (const std::int64_t d : op.sizes(0).empty() ? Dims() : op.dims("dims")) {
    in += static_cast<char>('a' + in.size());
    out += static_cast<char>('a' + d);
  }
  return view_rule(Rule(in + " -> " + out));
}

Rule view(const OpArgs& op) {
  return view_rule(Rule::view(op.sizes(0), op.result(0).sizes)).local_size(op.has_arg("size") ? "size" : "shape");
}

// Reinterpreting the bits of summands does not preserve their sum.
Rule bits(const OpArgs& op) {
  const bool other = op.arg("dtype").toScalarType() != op.dtype(0);
  return other ? Rule("X -> X").keeps_storage_shards() : view_rule("X -> X");
}

// The dimensions named by a squeeze that have size 1 and are removed (`goes`), or that have another size and remain.
Rule::Dims squeezed(bool goes) {
  return [goes](const OpArgs& op) {
    const auto rank = std::ssize(op.sizes(0));
    Dims named, found;
    if (op.has_arg("dim") && rank > 0) named = op.integers("dim").empty() ? Dims() : op.dims("dim");
    for (std::int64_t d = 0; d < rank; ++d) {
      const bool asked = !op.has_arg("dim") || std::find(named.begin(), named.end(), d) != named.end();
      if (asked && (op.sizes(0)[static_cast<std::size_t>(d)] == 1) == goes) found.push_back(d);
    }
    return found;
  };
}

// A part of all rows is the operand itself, a view. Other parts are copies if the dimension is sharded. With out=
// tensors the dimension is unsharded.
Rule parts(const OpArgs& op, const char* text, const char* kernel) {
  Rule rule = view_rule(text);
  if (op.operand_count() > 1) return rule.unsharded("dim");
  if (op.result_count() == 1 && op.result(0).sizes == op.sizes(0)) return rule;
  return elastic(rule.sharded_by_kernel("dim", kernel), "dim");
}

void add(RuleBook& book, const char* text, std::initializer_list<const char*> ops) {
  for (const char* op : ops) book.rule(op, view_rule(text));
}

void add_texts(RuleBook& book) {
  add(book, "X -> X",
      {"aten::alias", "aten::detach", "aten::lift", "aten::lift_fresh", "aten::contiguous", "aten::_fw_primal",
       "aten::_conj", "aten::real", "aten::imag"});
  // Negation turns Partial(max) into a minimum, so only linear Partials are preserved.
  book.rule("aten::_neg_view", Rule("X -> X").linear({0}).keeps_storage_shards());
  add(book, "ab -> ba | a -> a |  -> ", {"aten::t"});
  add(book, "X[dim0=a,dim1=b] -> X[dim1=a,dim0=b]", {"aten::transpose"});
  add(book, "X -> X[dim=_]", {"aten::unsqueeze"});
  add(book, "X[dim!] -> X*", {"aten::unbind"});
  // If the dimension is split, the rank that has the entry broadcasts it; the result is a copy, not a view.
  book.rule("aten::select", view_rule("X[dim] -> X")).sharded_by_kernel("dim", "select_row").kernel_gives_replicate();
  book.rule(
      "aten::slice", [](const OpArgs& op) { return parts(op, "X[dim] -> X[dim]", "slice_split"); }, kParts);
  for (const char* op :
       {"aten::split", "aten::unsafe_split", "aten::split_with_sizes", "aten::unsafe_split_with_sizes"}) {
    book.rule(
        op, [](const OpArgs& call) { return parts(call, "X[dim] -> X[dim]*", "split_split"); }, kParts);
  }
  book.rule(
      "aten::narrow", [](const OpArgs& op) { return parts(op, "X[dim] -> X[dim]", "slice_split"); }, kParts);
  add(book, "X -> X*", {"aten::chunk", "aten::unsafe_chunk"});
  add(book, "X[dim1!,dim2!] -> X_", {"aten::diagonal"});
  add(book, "X[dimension!] -> X[dimension=_]_", {"aten::unfold"});
  add(book, "X -> X_", {"aten::view_as_real", "aten::_view_as_real_physical"});
  add(book, "X_ -> X", {"aten::view_as_complex"});
}

}  // namespace

void add_views_rules(RuleBook& book) {
  add_texts(book);
  for (const char* op :
       {"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::reshape", "aten::_reshape_copy"}) {
    book.rule(op, view, "common factors of both shapes");
  }
  book.rule("aten::permute", permute, "abc -> cab by dims");
  book.rule("aten::view.dtype", bits, "X -> X");
  book.rule("aten::expand", view_rule("... -> ...")).local_size("size");
  // A rank with one element of a remaining dimension would squeeze it.
  book.rule("aten::squeeze", view_rule("X[ones!,others] -> X[ones=,others]"))
      .dims("ones", squeezed(true))
      .dims("others", squeezed(false))
      .sharded_by_kernel("others", "squeeze_global");
}

}  // namespace dtensor
