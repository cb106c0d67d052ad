// Indexing. The indexed dimension of the operand is unsharded (except for embedding tables); the dimensions of the
// index may be sharded.
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

// self[indices] in notation, by operand. Each dimension of self is a letter. The dimensions of the indices, which
// broadcast together, replace the indexed dimensions in the result. They are in front if the indexed dimensions are not
// adjacent.
struct Advanced {
  std::string self, indices, result, broadcast;
};

Advanced advanced(const OpArgs& op, int end) {
  Advanced x;
  std::size_t rank = 0, first = 0, last = 0, count = 0;
  for (int i = 1; i < end; ++i) {
    if (op.defined(i)) rank = std::max(rank, op.sizes(i).size());
  }
  for (std::size_t b = 0; b < rank; ++b) x.broadcast += static_cast<char>('z' - b);
  for (std::size_t d = 0; d < op.sizes(0).size(); ++d) {
    const bool indexed = static_cast<int>(d) + 1 < end && op.defined(static_cast<int>(d) + 1);
    const char letter = static_cast<char>('a' + d);
    x.self += letter;
    indexed ? x.self += '!' : x.result += letter;
    if (!indexed) continue;
    if (count++ == 0) first = d;
    last = d;
  }
  x.result.insert(count == last - first + 1 ? first : 0, x.broadcast);
  for (int i = 1; i < end; ++i) {
    x.indices += ", " + (op.defined(i) ? x.broadcast.substr(rank - op.sizes(i).size()) : std::string("~"));
  }
  return x;
}

bool has_mask(const OpArgs& op, int end) {
  for (int i = 1; i < end; ++i) {
    if (op.defined(i) && c10::isIntegralType(op.dtype(i), true) && c10::elementSize(op.dtype(i)) == 1) return true;
  }
  return false;
}

Rule index(const OpArgs& op) {
  if (has_mask(op, op.operand_count())) return Rule();
  const Advanced x = advanced(op, op.operand_count());
  return Rule(x.self + x.indices + " -> " + x.result).structural({0});
}

// Sizes of self[indices], to which values broadcast. It is checked here, since a kernel sees only a part.
at::DimVector indexed_sizes(const OpArgs& op, const Advanced& x, int end) {
  at::DimVector shared, sizes;
  for (int i = 1; i < end; ++i) {
    if (op.defined(i)) shared = at::infer_size_dimvector(shared, op.sizes(i));
  }
  for (const char letter : x.result) {
    const auto b = x.broadcast.find(letter);
    sizes.push_back(b < shared.size() ? shared[b] : op.sizes(0)[static_cast<std::size_t>(letter - 'a')]);
  }
  return sizes;
}

// If indices are equal, their order decides which value is written. So indices are unsharded unless values accumulate.
Rule index_put(const OpArgs& op) {
  const int values = op.operand("values");
  if (has_mask(op, values)) return Rule();
  const Advanced x = advanced(op, values);
  const auto indexed = indexed_sizes(op, x, values);
  TORCH_CHECK(at::is_expandable_to(op.sizes(values), indexed), "shape mismatch: value tensor of shape ",
              op.sizes(values), " cannot be broadcast to indexing result of shape ", at::IntArrayRef(indexed));
  const bool add = op.boolean("accumulate");
  const std::size_t lacks = x.result.size() - std::min(x.result.size(), op.sizes(values).size());
  Rule rule((add ? "+" : "") + x.self + x.indices + ", " + x.result.substr(lacks) + " -> " + x.self);
  return add ? rule.linear({0, values}) : rule.unsharded(x.broadcast);
}

// Rows are split only if the table's own shards prefer it (OpCall::preferred_result). Frequencies are counted over the
// full batch.
Rule embedding_backward(const OpArgs& op) {
  Rule rule = Rule("...d, ... -> vd").sharded_by_kernel("v", "embedding_backward_vocab");
  return op.boolean("scale_grad_by_freq") ? rule.unsharded("...d") : rule.linear({0});
}

std::vector<OutputMeta> table_gradient(const OpArgs& op) {
  return {dense_meta({op.integer("num_weights"), op.sizes(0).back()}, op.dtype(0))};
}

void add_embedding(RuleBook& book) {
  book.rule("aten::embedding", "vd, ... -> ...d").linear({0}).sharded_by_kernel("v", "embedding_vocab").indexes("0");
  book.replicate("aten::embedding_renorm_", "rows are scaled where the indices say");
  book.replicate("aten::embedding_renorm", "rows are scaled where the indices say");
  book.rule("aten::embedding_dense_backward", embedding_backward, "...d, ... -> vd, by scale_grad_by_freq")
      .follows_parameter_placement()
      .outputs(table_gradient);
}

void add_data_dependent(RuleBook& book) {
  for (const char* op :
       {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
        "aten::unique_dim_consecutive", "aten::_unique", "aten::repeat_interleave.Tensor", "aten::bincount",
        "aten::nonzero_static", "aten::masked_scatter_backward"}) {
    book.replicate(op, "the result's size depends on the data");
  }
  // The numbers of sequences per step are for the host, which unpacks a packed sequence with them.
  book.rule("aten::_pack_padded_sequence", "~, ~ -> ~, ~").no_meta().outputs([](const OpArgs& op) {
    return std::vector{unknown_meta(op.dtype(0)), undefined_meta()};
  });
  for (const char* op : {"aten::_local_scalar_dense", "aten::_assert_async", "aten::_assert_async.msg",
                         "aten::_functional_assert_async.msg", "aten::_is_all_true", "aten::_is_any_true",
                         "aten::is_nonzero", "aten::equal"}) {
    book.replicate(op, "one value for every rank");
  }
}

// A 1-d sequence serves all values, others are searched row by row. Operands that are numbers have no dimension.
Rule searchsorted(const OpArgs& op) {
  if (op.operand_arg(1) != "self") return Rule("~, ~ -> ~");
  if (op.sizes(0).size() == 1) return Rule("~, ..., ~ -> ...");
  return Rule("...s!, ...n, ...s! -> ...n");
}

std::vector<OutputMeta> search_outputs(const OpArgs& op) {
  const int self = op.operand("self");
  const auto type = op.boolean("out_int32") ? c10::ScalarType::Int : c10::ScalarType::Long;
  return {dense_meta(self < 0 ? at::IntArrayRef() : op.sizes(self), type)};
}

// The sizes of a segment reduction, for which offsets take precedence over lengths. Checked here, since the kernels
// read out of bounds for wrong sizes.
at::DimVector reduced_segments(const OpArgs& op, int data_at, int lengths_at, int offsets_at) {
  const bool by_length = !op.defined(offsets_at);
  TORCH_CHECK(!by_length || op.defined(lengths_at), "segment_reduce: expected lengths or offsets, got neither");
  const at::IntArrayRef data = op.sizes(data_at), ends = op.sizes(by_length ? lengths_at : offsets_at);
  const auto axis = c10::maybe_wrap_dim(op.integer("axis"), std::ssize(data));
  const auto outer = static_cast<std::size_t>(axis);
  TORCH_CHECK(ends.size() == outer + 1 && outer < data.size() && data.slice(0, outer).equals(ends.slice(0, outer)) &&
                  (by_length || ends.back() > 0),
              "segments of data of sizes ", data, " along dimension ", axis, " cannot have ",
              by_length ? "lengths" : "offsets", " of sizes ", ends);
  at::DimVector sizes(data);
  sizes[outer] = ends.back() - (by_length ? 0 : 1);
  return sizes;
}

// Operands: data, lengths, indices, offsets. Result: the reduced segments.
Rule segment_reduce(const OpArgs& op) {
  TORCH_CHECK(!op.defined(2), "segment_reduce: expected no indices");
  reduced_segments(op, 0, 1, 3);
  return Rule("~, ~, ~, ~ -> ~").kernel("segments");
}

// Operands: grad, output, data, lengths, offsets. Result: the gradient of data.
Rule segment_reduce_backward(const OpArgs& op) {
  const at::DimVector expected = reduced_segments(op, 2, 3, 4);
  TORCH_CHECK(op.sizes(1).equals(expected) && op.sizes(0).equals(expected),
              "the gradient of segment_reduce: expected segments of sizes ", expected, ", got an output of sizes ",
              op.sizes(1), " and a gradient of sizes ", op.sizes(0));
  return Rule("~, ~, ~, ~, ~ -> ~").kernel("segments");
}

void add_searches(RuleBook& book) {
  book.rule("aten::searchsorted", searchsorted, "...s!, ...n -> ...n, or one sequence for all").outputs(search_outputs);
  book.rule(
          "aten::bucketize",
          [](const OpArgs& op) { return Rule(op.operand_arg(0) == "self" ? "..., ~ -> ..." : "~ -> ~"); },
          "..., ~ -> ..., or of a number")
      .outputs(search_outputs);
  book.rule("aten::isin.Tensor_Tensor", "..., ~ -> ...");
  book.rule("aten::isin.Scalar_Tensor", "~ -> ~");
  book.rule("aten::take", "~, ... -> ...").indexes("flat", true);
  for (const char* op : {"aten::put", "aten::masked_scatter"}) {
    book.replicate(op, "indices count through the full tensor");
  }
  book.rule("aten::segment_reduce", segment_reduce, "~, ~, ~, ~ -> ~: segments begin where the data says")
      .restricts_values()
      .outputs([](const OpArgs& op) { return std::vector{dense_meta(reduced_segments(op, 0, 1, 3), op.dtype(0))}; });
  book.rule("aten::_segment_reduce_backward", segment_reduce_backward,
            "~, ~, ~, ~, ~ -> ~: segments begin where the data says")
      .restricts_values()
      .outputs([](const OpArgs& op) { return std::vector{dense_meta(op.sizes(2), op.dtype(2))}; });
}

// Whether the fourth result of embedding_bag has features too.
bool takes_maxima(const OpArgs& op) { return op.integer("mode") == 2; }

// Operands: weight, indices, offsets, per_sample_weights. Results: output, offset2bag, bag_size, max_indices. Features
// may be sharded, and so may rows, of which each rank sums its own.
Rule embedding_bag(const OpArgs& op) {
  if (takes_maxima(op)) return "~, ~, ~, ~ -> ~, ~, ~, ~";
  return Rule("vd, ~, ~, ~ -> _d, ~, ~, ~").sharded_by_kernel("v", "embedding_bag_vocab");
}

// The kernel determines the sizes of the other results, which are at most these.
std::vector<OutputMeta> embedding_bag_outputs(const OpArgs& op) {
  const std::int64_t bags = op.sizes(2)[0] - (op.boolean("include_last_offset") ? 1 : 0), features = op.sizes(0)[1];
  const auto other = [&](at::IntArrayRef sizes) {
    auto meta = dense_meta(sizes, op.dtype(1));
    meta.from_local = true;
    return meta;
  };
  const auto maxima = takes_maxima(op) ? other({bags, features}) : other({bags});
  return {dense_meta({bags, features}, op.dtype(0)), other({op.sizes(1)[0]}), other({bags}), maxima};
}

void add_embedding_bag(RuleBook& book) {
  for (const char* op : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}) {
    book.rule(op, embedding_bag, "vd, ~, ~, ~ -> _d, ~, ~, ~ but of mode max").outputs(embedding_bag_outputs);
  }
  for (const char* op : {"aten::_embedding_bag_dense_backward", "aten::_embedding_bag_backward"}) {
    // Operands: grad, indices, offsets and counts, and for one of the operators a table.
    book.rule(op, "_d, _d?* -> vd")
        .linear({0})
        .sharded_by_kernel("v", "embedding_bag_backward")
        .kernel("embedding_bag_backward")
        .follows_parameter_placement()
        .takes_saved_results()
        .outputs(table_gradient);
  }
  book.rule("aten::_embedding_bag_per_sample_weights_backward",
            Rule("_d, vd, ~, ~, ~ -> _")
                .linear({0})
                .sharded_by_kernel("v", "embedding_bag_factors_backward")
                .kernel("embedding_bag_factors_backward"))
      .takes_saved_results()
      .outputs([](const OpArgs& op) { return std::vector{dense_meta(op.sizes(2), op.dtype(0))}; });
}

// Operands: self, index, source. The index and the source have a factor of their own along `dim`.
void add_along(RuleBook& book) {
  // An index without elements may have any number of dimensions.
  book.rule("aten::gather", "X[dim!], X[dim=i] -> X[dim=i] | X!, Y! -> Y").structural({0}).indexes("dim");
  for (const char* op : {"aten::scatter", "aten::scatter_reduce.two"}) {
    book.rule(op, "X[dim!], X[dim=i!], X[dim=i] -> X[dim]").indexes("dim");
  }
  book.rule("aten::scatter_add", "+X[dim!], X[dim=i], X[dim=i] -> X[dim]").linear({0, 2}).indexes("dim");
  // self or the index may be a scalar.
  book.rule("aten::index_select", ", j! -> | X[dim!], i -> X[dim=i] | X[dim!],  -> X[dim=_]")
      .structural({0})
      .indexes("dim");
  // The meta kernels of two of these select entry 0, which may not exist.
  const auto as_self = [](const OpArgs& op) { return std::vector{dense_meta(op.sizes(0), op.dtype(0))}; };
  book.rule("aten::index_add", ", ~, ~ -> | +X[dim!], i, X[dim=i] -> X[dim] | +X[dim!], , X[dim=_] -> X[dim]")
      .linear({0, 2})
      .outputs(as_self)
      .indexes("dim");
  book.rule("aten::index_copy", "X[dim!], ~, X[dim=_] -> X[dim]").indexes("dim");
  book.rule("aten::index_reduce", "X[dim!], ~, X[dim=_] -> X[dim]").outputs(as_self).indexes("dim");
  book.rule("aten::index_fill", "X[dim!], ~, ~ -> X[dim]").indexes("dim", true);
}

}  // namespace

void add_indexing_rules(RuleBook& book) {
  add_searches(book);
  add_embedding_bag(book);
  add_embedding(book);
  add_data_dependent(book);
  add_along(book);
  for (const char* op : {"aten::index", "aten::_unsafe_index"}) {
    book.rule(op, index, "what is not indexed").indexes("each", true);
  }
  for (const char* op :
       {"aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl", "aten::_index_put_impl_"}) {
    book.rule(op, index_put, "what is not indexed").indexes("each", true);
  }
}

}  // namespace dtensor
