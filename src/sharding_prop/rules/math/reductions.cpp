// Reductions. If the reduced dimension is sharded, the result is a Partial of the operator's kind, if there is one.
// Means, norms and reductions that return indices need a local kernel or an unsharded dimension.
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

constexpr const char* kReduced = "X[dim] -> X[dim?]*";
constexpr const char* kAlong = "X[dim] -> X[dim]*";

// For these operators an empty list of dimensions means none; for other reductions it means all.
std::vector<std::int64_t> dims_as_given(const OpArgs& op) {
  const bool named = op.has_arg("dim") && !op.arg("dim").isNone();
  if (named && op.integers("dim").empty()) return {};
  if (named) return op.dims("dim");
  std::vector<std::int64_t> all(op.sizes(0).size());
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

void add_simple(RuleBook& book) {
  book.rule("aten::sum", kReduced).linear({0});
  book.rule("aten::mean", kReduced).linear({0}).sharded_by_kernel("dim", "mean_global_count");
  for (const char* op : {"aten::nansum", "aten::count_nonzero", "aten::linalg__powsum"}) book.rule(op, kReduced);
  book.rule("aten::prod", kReduced).reduce(ReduceOp::product);
  book.rule("aten::any", kReduced).reduce(ReduceOp::max).dims("dim", dims_as_given);
  book.rule("aten::all", kReduced).reduce(ReduceOp::min).dims("dim", dims_as_given);
  // Ranks without elements contribute the identity.
  for (const auto& [op, kind] : {std::pair{"aten::amax", ReduceOp::max},
                                 {"aten::max", ReduceOp::max},
                                 {"aten::amin", ReduceOp::min},
                                 {"aten::min", ReduceOp::min}}) {
    const char* kernel = kind == ReduceOp::max ? "max_with_identity" : "min_with_identity";
    book.rule(op, kReduced).monotone({0}, kind).reduce(kind).sharded_by_kernel("dim", kernel).kernel_gives(kind);
  }
}

// Local kernels exchange positions, moments or sums of exponentials instead of gathering the dimension.
void add_by_kernel(RuleBook& book) {
  const auto add = [&](const char* op, const char* kernel) -> Rule& {
    return book.rule(op, kReduced).sharded_by_kernel("dim", kernel).kernel_gives_replicate();
  };
  add("aten::aminmax", "aminmax_with_identity");
  add("aten::argmax", "argmax_sharded");
  add("aten::argmin", "argmin_sharded");
  add("aten::max.dim", "max_dim_sharded");
  add("aten::min.dim", "min_dim_sharded");
  for (const char* op : {"aten::var.correction", "aten::var_mean.correction"}) add(op, "var_sharded");
  for (const char* op : {"aten::std.correction", "aten::std_mean.correction"}) add(op, "std_sharded");
  add("aten::logsumexp", "logsumexp_sharded");
  for (const char* op : {"aten::linalg_vector_norm", "aten::norm"}) add(op, "vector_norm_sharded").reads_scalars();
}

// A sharded vector is sorted in place. For more dimensions, another dimension is sharded, since an all-to-all costs
// less than an all-gather.
Rule sort(const OpArgs& op) {
  const bool vector = op.sizes(0).empty() ||
                      c10::multiply_integers(op.sizes(0)) == op.sizes(0)[static_cast<std::size_t>(op.dim("dim"))];
  return vector ? Rule("X![dim] -> X[dim]*").sharded_by_kernel("dim", "sort_sharded") : Rule("X[dim!] -> X[dim]*");
}

void add_along(RuleBook& book) {
  for (const char* op : {"aten::_cummax_helper", "aten::_cummin_helper", "aten::cummax", "aten::cummin"}) {
    book.rule(op, "X[dim!]* -> X[dim]*");
  }
  for (const char* op : {"aten::sort", "aten::sort.stable"})
    book.rule(op, sort, "X[dim!] -> X[dim], of a vector along it");
  // The largest entries of each part are gathered, so results are replicated along the dimension.
  book.rule("aten::topk", "X[dim] -> X[dim=_]*").sharded_by_kernel("dim", "topk_sharded").kernel_gives_replicate();
  book.rule("aten::cumsum", kAlong).sharded_by_kernel("dim", "cumsum_sharded").linear({0});
  book.rule("aten::cumprod", kAlong).sharded_by_kernel("dim", "cumprod_sharded");
  for (const char* op : {"aten::logcumsumexp", "aten::_logcumsumexp"}) {
    book.rule(op, kAlong).sharded_by_kernel("dim", "logcumsumexp_sharded");
  }
}

}  // namespace

void add_reductions_rules(RuleBook& book) {
  add_simple(book);
  add_by_kernel(book);
  add_along(book);
  for (const char* op : {"aten::_aminmax", "aten::_aminmax.dim", "aten::median", "aten::median.dim", "aten::nanmedian",
                         "aten::nanmedian.dim", "aten::mode", "aten::kthvalue"}) {
    book.rule(op, "X[dim!] -> X[dim?]*");
  }
}

}  // namespace dtensor
