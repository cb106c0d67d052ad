// Views and slicing: which dimension of the result is which of the operand. Partials of any kind pass through.
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

using Dims = std::vector<std::int64_t>;

Rule view_rule(Rule rule) { return rule.structural({0}).keeps_storage(); }

// Result dimension i is operand dimension source[i] (-1: new); those named nowhere must be whole.
Rule rearranged(const OpArgs& op, const Dims& source, at::IntArrayRef whole = {}) {
  Rule rule;
  RuleTerm in, out;
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) in.push_back({rule.factor()});
  for (const std::int64_t s : source) out.push_back(s < 0 ? RuleDim() : in[static_cast<std::size_t>(s)]);
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(in.size()); ++d) {
    if (std::find(source.begin(), source.end(), d) == source.end()) rule.whole_factor(static_cast<int>(d));
  }
  for (const std::int64_t d : whole) rule.whole_factor(static_cast<int>(d));
  rule.operand(in);
  for (int r = 0; r < std::max(op.result_count(), 1); ++r) rule.result(out);
  return view_rule(std::move(rule));
}

Dims identity(const OpArgs& op) {
  Dims dims(op.sizes(0).size());
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

Rule transpose(const OpArgs& op) {
  Dims source = identity(op);
  if (!source.empty()) {
    std::swap(source[static_cast<std::size_t>(op.dim("dim0"))], source[static_cast<std::size_t>(op.dim("dim1"))]);
  }
  return rearranged(op, source);
}

Rule t(const OpArgs& op) {
  Dims source = identity(op);
  std::reverse(source.begin(), source.end());
  return rearranged(op, source);
}

Rule permute(const OpArgs& op) { return rearranged(op, op.sizes(0).empty() ? Dims() : op.dims("dims")); }

Rule unsqueeze(const OpArgs& op) {
  Dims source = identity(op);
  const auto rank = static_cast<std::int64_t>(source.size());
  const std::int64_t dim = op.integer("dim");
  source.insert(source.begin() + (dim < 0 ? dim + rank + 1 : dim), -1);
  return rearranged(op, source);
}

// Dimensions of size 1 among `dims` go. One that has another size stays, but a rank that holds just one of its elements
// would squeeze it all the same.
Rule squeeze(const OpArgs& op, const Dims& dims) {
  Dims source, stays;
  for (const std::int64_t d : identity(op)) {
    const bool named = std::find(dims.begin(), dims.end(), d) != dims.end();
    const bool goes = named && op.sizes(0)[static_cast<std::size_t>(d)] == 1;
    if (!goes) source.push_back(d);
    if (named && !goes) stays.push_back(d);
  }
  Rule rule = rearranged(op, source);
  for (const std::int64_t d : stays) rule.handled_factor(static_cast<int>(d), "squeeze_global");
  return rule;
}

Rule squeeze_named(const OpArgs& op) {
  if (op.sizes(0).empty() || !op.has_arg("dim")) return squeeze(op, identity(op));
  return squeeze(op, op.integers("dim").empty() ? Dims() : op.dims("dim"));
}

Rule expand(const OpArgs& op) {
  const at::IntArrayRef in = op.sizes(0);
  const at::IntArrayRef out = op.result(0).sizes;
  Dims source(out.size(), -1);
  const std::size_t added = out.size() - in.size();
  for (std::size_t d = 0; d < in.size(); ++d) {
    source[added + d] = static_cast<std::int64_t>(d);
    if (in[d] != out[added + d]) source[added + d] = -1;
  }
  return rearranged(op, source).local_size("size");
}

Rule without_dim(const OpArgs& op) {
  Dims source = identity(op);
  source.erase(source.begin() + op.dim("dim"));
  return rearranged(op, source);
}

// The named dimension is cut to lengths that the call gives: it must be whole.
Rule cut_to_length(const OpArgs& op) { return rearranged(op, identity(op), Dims{op.dim("dim")}); }

// The named dimension is cut: it must be whole unless the result has all of it.
Rule cut(const OpArgs& op) {
  const std::int64_t dim = op.dim("dim");
  const auto at = static_cast<std::size_t>(dim);
  const bool all = op.result_count() == 1 && op.result(0).sizes[at] == op.sizes(0)[at];
  return rearranged(op, identity(op), all ? Dims() : Dims{dim});
}

Rule diagonal(const OpArgs& op) {
  Dims source;
  const std::int64_t a = op.dim("dim1"), b = op.dim("dim2");
  for (const std::int64_t d : identity(op)) {
    if (d != a && d != b) source.push_back(d);
  }
  source.push_back(-1);
  return rearranged(op, source);
}

Rule unfold(const OpArgs& op) {
  Dims source = identity(op);
  if (source.empty()) return rearranged(op, {-1});
  const std::int64_t dim = op.dim("dimension");
  source[static_cast<std::size_t>(dim)] = -1;
  source.push_back(-1);
  return rearranged(op, source);
}

Rule view(const OpArgs& op) { return view_rule(view_factors(op.sizes(0), op.result(0).sizes)); }

Rule sized_view(const OpArgs& op) { return view(op).local_size(op.has_arg("size") ? "size" : "shape"); }

// view_as_real and its kin: a last dimension comes or goes.
Rule last_dim(const OpArgs& op) {
  Dims source = identity(op);
  const std::size_t rank = op.result(0).sizes.size();
  source.resize(std::min(source.size(), rank));
  source.resize(rank, -1);
  return rearranged(op, source);
}

// Another dtype: the last dimension changes where the element size does.
Rule view_dtype(const OpArgs& op) {
  const bool same_size = op.sizes(0).equals(op.result(0).sizes);
  Rule rule =
      rearranged(op, identity(op),
                 same_size || op.sizes(0).empty() ? Dims() : Dims{static_cast<std::int64_t>(op.sizes(0).size()) - 1});
  return rule;
}

void add_reshapes(RuleBook& book) {
  for (const char* op :
       {"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::reshape", "aten::_reshape_copy"}) {
    book.rule(op, sized_view);
  }
  book.rule("aten::view.dtype", view_dtype);
  book.rule("aten::view_as_real", last_dim);
  book.rule("aten::view_as_complex", last_dim);
  book.rule("aten::_view_as_real_physical", last_dim);
}

}  // namespace

void add_view_rules(RuleBook& book) {
  add_reshapes(book);
  for (const char* op : {"aten::alias", "aten::detach", "aten::lift", "aten::lift_fresh", "aten::contiguous",
                         "aten::_fw_primal", "aten::_neg_view", "aten::_conj", "aten::real", "aten::imag"}) {
    book.rule(op, [](const OpArgs& call) { return rearranged(call, identity(call)); });
  }
  book.rule("aten::t", t);
  book.rule("aten::transpose", transpose);
  book.rule("aten::permute", permute);
  book.rule("aten::expand", expand);
  book.rule("aten::unsqueeze", unsqueeze);
  book.rule("aten::squeeze", squeeze_named);
  book.rule("aten::select", without_dim);
  book.rule("aten::unbind", without_dim);
  for (const char* op : {"aten::slice", "aten::split", "aten::chunk", "aten::unsafe_split", "aten::unsafe_chunk"}) {
    book.rule(op, cut);
  }
  for (const char* op : {"aten::narrow", "aten::split_with_sizes", "aten::unsafe_split_with_sizes"}) {
    book.rule(op, cut_to_length);
  }
  book.rule("aten::diagonal", diagonal);
  book.rule("aten::unfold", unfold);
}

}  // namespace dtensor
