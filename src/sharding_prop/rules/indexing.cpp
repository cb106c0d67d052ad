// Indexing: the indexed dimension of the operand is whole (but for embedding tables), the index's own dimensions are
// free.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

// self, index and perhaps src: shared where their sizes agree, but for `dim`, where self is whole and the index, its
// src and the result `along` have a factor of their own.
struct Indexed {
  Rule rule;
  RuleTerm self, index;
  int index_factor = -1;
};

Indexed indexed(const OpArgs& op, std::int64_t dim) {
  Indexed x;
  const at::IntArrayRef sizes = op.sizes(0), index = op.sizes(1);
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
    const int factor = x.rule.factor();
    const bool shared = d != dim && static_cast<std::size_t>(d) < index.size() &&
                        index[static_cast<std::size_t>(d)] == sizes[static_cast<std::size_t>(d)];
    x.self.push_back({factor});
    if (!shared) x.rule.whole_factor(factor);
    x.index.push_back(shared ? RuleDim{factor} : RuleDim{});
  }
  x.index_factor = x.rule.factor("i");
  if (!sizes.empty()) x.index[static_cast<std::size_t>(dim)] = {x.index_factor};
  return x;
}

Rule gather(const OpArgs& op) {
  if (op.sizes(0).empty() || op.sizes(1).empty()) return Rule("~, ~ -> ...");
  Indexed x = indexed(op, op.dim("dim"));
  return x.rule.operand(x.self).operand(x.index).result(x.index).structural({0});
}

// Writes at indexed places of self; `add`: contributions of several ranks may be summed.
Rule scatter(const OpArgs& op, bool add) {
  if (op.sizes(0).empty() || op.sizes(1).empty()) return Rule("~, ~, ~ -> ...");
  Indexed x = indexed(op, op.dim("dim"));
  if (!add) x.rule.whole_factor(x.index_factor);
  x.rule.operand(x.self).operand(x.index);
  const int src = op.operand("src");
  if (src >= 0) op.sizes(src) == op.sizes(1) ? x.rule.operand(x.index) : x.rule.absent_operand();
  // A src larger than its index is read in part: nothing but whole.
  if (src >= 0 && op.sizes(src) != op.sizes(1)) {
    for (std::size_t f = 0; f <= op.sizes(0).size(); ++f) x.rule.whole_factor(static_cast<int>(f));
  }
  x.rule.result(x.self);
  return add ? x.rule.once(0).linear({0, 2}) : x.rule;
}

// index_select and its kin: a 1-d (or 0-d) index along one dimension.
struct AlongIndex {
  Rule rule;
  RuleTerm self, source, index;
};

AlongIndex along_index(const OpArgs& op) {
  AlongIndex x;
  const auto rank = static_cast<std::int64_t>(op.sizes(0).size());
  const std::int64_t dim = rank == 0 ? 0 : op.dim("dim");
  for (std::int64_t d = 0; d < rank; ++d) x.self.push_back({x.rule.factor()});
  x.source = x.self;
  const int index = x.rule.factor("i");
  if (rank > 0) {
    x.rule.whole_factor(static_cast<int>(dim));
    x.source[static_cast<std::size_t>(dim)] = {index};
  }
  if (!op.sizes(1).empty()) x.index.push_back({index});
  if (rank == 0 || op.sizes(1).empty()) x.rule.whole_factor(index);
  return x;
}

Rule index_select(const OpArgs& op) {
  AlongIndex x = along_index(op);
  return x.rule.operand(x.self).operand(x.index).result(x.source).structural({0});
}

Rule index_add(const OpArgs& op) {
  AlongIndex x = along_index(op);
  return x.rule.operand(x.self).operand(x.index).operand(x.source).result(x.self).once(0).linear({0, 2});
}

Rule index_copy(const OpArgs& op) {
  AlongIndex x = along_index(op);
  x.rule.whole("i");
  return x.rule.operand(x.self).operand(x.index).operand(x.source).result(x.self);
}

Rule index_fill(const OpArgs& op) {
  AlongIndex x = along_index(op);
  x.rule.whole("i");
  return x.rule.operand(x.self).operand(x.index).result(x.self);
}

// self[indices]: which dimensions are indexed, and where the index's own dimensions stand in the result.
struct Advanced {
  Rule rule;
  RuleTerm self, result;
  RuleTerm broadcast;  // the common dimensions of the indices
  std::size_t first = 0;
};

std::size_t broadcast_rank(const OpArgs& op, int first_index, int end) {
  std::size_t rank = 0;
  for (int i = first_index; i < end; ++i) {
    if (op.defined(i)) rank = std::max(rank, op.sizes(i).size());
  }
  return rank;
}

bool has_mask(const OpArgs& op, int end) {
  for (int i = 1; i < end; ++i) {
    if (op.defined(i) && (op.dtype(i) == c10::ScalarType::Bool || op.dtype(i) == c10::ScalarType::Byte)) return true;
  }
  return false;
}

bool is_indexed(const OpArgs& op, std::size_t dim, int end) {
  return static_cast<int>(dim) + 1 < end && op.defined(static_cast<int>(dim) + 1);
}

Advanced advanced(const OpArgs& op, int end) {
  Advanced x;
  const std::size_t rank = op.sizes(0).size();
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < rank; ++d) {
    x.self.push_back({x.rule.factor()});
    if (!is_indexed(op, d, end)) continue;
    x.rule.whole_factor(static_cast<int>(d));
    dims.push_back(d);
  }
  for (std::size_t i = 0; i < broadcast_rank(op, 1, end); ++i) x.broadcast.push_back({x.rule.factor()});
  const bool adjacent = !dims.empty() && dims.back() - dims.front() + 1 == dims.size();
  x.first = adjacent ? dims.front() : 0;
  for (std::size_t d = 0; d < rank; ++d) {
    if (!is_indexed(op, d, end)) x.result.push_back(x.self[d]);
  }
  x.result.insert(x.result.begin() + static_cast<std::ptrdiff_t>(x.first), x.broadcast.begin(), x.broadcast.end());
  return x;
}

RuleTerm right_aligned(const RuleTerm& term, std::size_t rank) {
  if (rank >= term.size()) return term;
  return RuleTerm(term.end() - static_cast<std::ptrdiff_t>(rank), term.end());
}

void add_index_operands(const OpArgs& op, int end, Advanced& x) {
  x.rule.operand(x.self);
  for (int i = 1; i < end; ++i) {
    op.defined(i) ? x.rule.operand(right_aligned(x.broadcast, op.sizes(i).size())) : x.rule.absent_operand();
  }
}

Rule index(const OpArgs& op) {
  if (has_mask(op, op.operand_count())) return Rule();
  Advanced x = advanced(op, op.operand_count());
  add_index_operands(op, op.operand_count(), x);
  return x.rule.result(x.result).structural({0});
}

// Which of several equal indices wins depends on their order, so the indices are whole unless values add up.
Rule index_put(const OpArgs& op) {
  const int values = op.operand("values");
  if (has_mask(op, values)) return Rule();
  Advanced x = advanced(op, values);
  const bool add = op.boolean("accumulate");
  if (!add) {
    for (const RuleDim& dim : x.broadcast) x.rule.whole_factor(dim[0]);
  }
  add_index_operands(op, values, x);
  x.rule.operand(right_aligned(x.result, op.sizes(values).size())).result(x.self);
  return add ? x.rule.once(0).linear({0, values}) : x.rule;
}

// Rows are split only where the table's own shards want them so (OpCall::wanted).
Rule embedding_backward(const OpArgs& op) {
  constexpr const char* kKernel = "embedding_backward_vocab";
  Rule rule("...d, ... -> vd");
  rule.linear({0}).handled("v", kKernel);
  // Counts of an index are over the whole batch.
  if (!op.boolean("scale_grad_by_freq")) return rule;
  Rule counted;
  RuleTerm grad, index;
  for (std::size_t i = 0; i < op.sizes(1).size(); ++i) index.push_back({counted.factor()});
  grad = index;
  const int d = counted.factor("d");
  grad.push_back({d});
  for (int f = 0; f < d; ++f) counted.whole_factor(f);
  const int rows = counted.factor("v");
  return counted.operand(grad).operand(index).result({RuleDim{rows}, RuleDim{d}}).handled_factor(rows, kKernel);
}

void add_embedding(RuleBook& book) {
  book.rule("aten::embedding", "vd, ... -> ...d").linear({0}).handled("v", "embedding_vocab");
  book.replicate("aten::embedding_renorm_", "rows are scaled where the indices say");
  book.replicate("aten::embedding_renorm", "rows are scaled where the indices say");
  book.rule("aten::embedding_dense_backward", embedding_backward).outputs([](const OpArgs& op) {
    return std::vector{dense_meta({op.integer("num_weights"), op.sizes(0).back()}, op.dtype(0))};
  });
}

void add_data_dependent(RuleBook& book) {
  for (const char* op :
       {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
        "aten::unique_dim_consecutive", "aten::_unique", "aten::repeat_interleave.Tensor", "aten::bincount",
        "aten::nonzero_static", "aten::masked_scatter_backward"}) {
    book.replicate(op, "the result's size depends on the data");
  }
  for (const char* op : {"aten::_local_scalar_dense", "aten::_assert_async", "aten::_assert_async.msg",
                         "aten::_functional_assert_async.msg", "aten::_is_all_true", "aten::_is_any_true",
                         "aten::is_nonzero", "aten::equal"}) {
    book.replicate(op, "one value for every rank");
  }
}

// self indexed as if it were flat; the index is free.
Rule take(const OpArgs&) { return Rule("~, ... -> ..."); }

// A view's place gets src: that dimension is whole.
Rule select_scatter(const OpArgs& op) {
  Rule rule;
  RuleTerm full, part;
  const auto dim = op.dim("dim");
  for (std::int64_t d = 0; d < std::ssize(op.sizes(0)); ++d) {
    full.push_back({rule.factor()});
    d == dim ? rule.whole_factor(static_cast<int>(d)) : rule;
    if (d != dim) part.push_back(full.back());
  }
  return rule.operand(full).operand(part).result(full).linear({0, 1});
}

Rule diagonal_scatter(const OpArgs& op) {
  Rule rule;
  RuleTerm full, part;
  const auto a = op.dim("dim1"), b = op.dim("dim2");
  for (std::int64_t d = 0; d < std::ssize(op.sizes(0)); ++d) {
    const bool diagonal = d == a || d == b;
    const int factor = rule.factor();
    full.push_back(diagonal ? RuleDim() : RuleDim{factor});
    if (!diagonal) part.push_back(full.back());
  }
  part.emplace_back();
  return rule.operand(full).operand(part).result(full).linear({0, 1});
}

// The last dimension of self becomes dimensions dim1 and dim2 of the result.
Rule diag_embed(const OpArgs& op) {
  const auto rank = std::ssize(op.result(0).sizes);
  const auto a = c10::maybe_wrap_dim(op.integer("dim1"), rank), b = c10::maybe_wrap_dim(op.integer("dim2"), rank);
  Rule rule;
  RuleTerm in, out;
  for (std::int64_t d = 0; d < rank; ++d) {
    const bool diagonal = d == a || d == b;
    out.push_back(diagonal ? RuleDim() : RuleDim{rule.factor()});
    if (!diagonal) in.push_back(out.back());
  }
  in.emplace_back();
  return rule.operand(in).result(out).linear({0});
}

// A 1-d sequence is searched by all, others row by row. Number operands have no dimension.
Rule searchsorted(const OpArgs& op) {
  if (op.operand_arg(1) != "self") return Rule("~, ~ -> ~");
  if (op.sizes(0).size() == 1) return Rule("~, ..., ~ -> ...");
  return Rule("...s!, ...n, ...s! -> ...n");
}

Rule isin(const OpArgs& op) { return Rule(op.operand_arg(0) == "elements" ? "..., ~ -> ..." : "~ -> ~"); }

Rule bucketize(const OpArgs& op) { return Rule(op.operand_arg(0) == "self" ? "..., ~ -> ..." : "~ -> ~"); }

std::vector<OutputMeta> search_outputs(const OpArgs& op) {
  const int self = op.operand("self");
  const auto type = op.boolean("out_int32") ? c10::ScalarType::Int : c10::ScalarType::Long;
  return {dense_meta(self < 0 ? at::IntArrayRef() : op.sizes(self), type)};
}

void add_searches(RuleBook& book) {
  book.rule("aten::searchsorted", searchsorted).outputs(search_outputs);
  book.rule("aten::bucketize", bucketize).outputs(search_outputs);
  book.rule("aten::isin.Tensor_Tensor", isin);
  book.rule("aten::isin.Scalar_Tensor", isin);
  book.rule("aten::take", take);
  book.rule("aten::select_scatter", select_scatter);
  book.rule("aten::diagonal_scatter", diagonal_scatter);
  book.rule("aten::diag_embed", diag_embed);
  for (const char* op : {"aten::put", "aten::masked_scatter"}) {
    book.replicate(op, "places are counted through the whole tensor");
  }
  for (const char* op : {"aten::segment_reduce", "aten::_segment_reduce_backward"}) {
    book.replicate(op, "segments begin where the data says");
  }
}

// weight, indices, offsets, per_sample_weights -> output, offset2bag, bag_size, max_indices. Features shard, and rows
// of which each rank adds up its own.
Rule embedding_bag(const OpArgs& op) {
  constexpr std::int64_t kMax = 2;  // its fourth result has features too
  if (op.integer("mode") == kMax) return "~, ~, ~, ~ -> ~, ~, ~, ~";
  return Rule("vd, ~, ~, ~ -> _d, ~, ~, ~").handled("v", "embedding_bag_vocab");
}

// The sizes of the others are the kernel's own affair.
std::vector<OutputMeta> embedding_bag_outputs(const OpArgs& op) {
  const std::int64_t bags = op.sizes(2)[0] - (op.boolean("include_last_offset") ? 1 : 0);
  OutputMeta whatever;
  whatever.from_local = true;
  whatever.dtype = op.dtype(1);
  return {dense_meta({bags, op.sizes(0)[1]}, op.dtype(0)), whatever, whatever, whatever};
}

// grad, indices, (offsets,) offset2bag, bag_size, maximum_indices, ..., per_sample_weights
Rule embedding_bag_backward(const OpArgs& op) {
  Rule rule;
  const RuleTerm rows{RuleDim(), RuleDim{rule.factor("d")}};
  for (int i = 0; i < op.operand_count(); ++i) {
    const bool by_feature = op.defined(i) && op.sizes(i).size() == 2 && op.sizes(i)[1] == op.sizes(0)[1];
    by_feature ? rule.operand(rows) : rule.absent_operand();
  }
  const int table = rule.factor("v");
  return rule.result({RuleDim{table}, rows[1]}).linear({0}).handled_factor(table, "embedding_bag_backward_vocab");
}

std::vector<OutputMeta> embedding_bag_gradient(const OpArgs& op) {
  return {dense_meta({op.integer("num_weights"), op.sizes(0).back()}, op.dtype(0))};
}

void add_embedding_bag(RuleBook& book) {
  for (const char* op : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}) {
    book.rule(op, embedding_bag).outputs(embedding_bag_outputs);
  }
  for (const char* op : {"aten::_embedding_bag_dense_backward", "aten::_embedding_bag_backward"}) {
    book.rule(op, embedding_bag_backward).outputs(embedding_bag_gradient);
  }
  book.rule("aten::_embedding_bag_per_sample_weights_backward",
            Rule("_d, vd, ~, ~, ~ -> _").linear({0}).handled("v", "embedding_bag_factors_backward_vocab"))
      .outputs([](const OpArgs& op) { return std::vector{dense_meta(op.sizes(2), op.dtype(0))}; });
}

}  // namespace

void add_indexing_rules(RuleBook& book) {
  add_searches(book);
  add_embedding_bag(book);
  add_embedding(book);
  add_data_dependent(book);
  book.rule("aten::gather", gather);
  book.rule("aten::scatter", [](const OpArgs& op) { return scatter(op, false); });
  book.rule("aten::scatter_reduce.two", [](const OpArgs& op) { return scatter(op, false); });
  book.rule("aten::scatter_add", [](const OpArgs& op) { return scatter(op, true); });
  book.rule("aten::index_select", index_select);
  // The meta kernels of these two select entry 0, which need not exist.
  const auto as_self = [](const OpArgs& op) { return std::vector{dense_meta(op.sizes(0), op.dtype(0))}; };
  book.rule("aten::index_add", index_add).outputs(as_self);
  book.rule("aten::index_copy", index_copy);
  book.rule("aten::index_reduce", index_copy).outputs(as_self);
  book.rule("aten::index_fill", index_fill);
  for (const char* op : {"aten::index", "aten::_unsafe_index"}) book.rule(op, index);
  for (const char* op : {"aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl"}) {
    book.rule(op, index_put);
  }
  book.rule("aten::_index_put_impl_", index_put);
}

}  // namespace dtensor
