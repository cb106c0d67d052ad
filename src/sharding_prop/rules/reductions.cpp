// Reductions: a sharded reduced dimension leaves a Partial of the operator's own kind where there is one; means, norms
// and index-returning reductions need a local kernel or the whole dimension.
#include "sharding_prop/rules/rules.h"

namespace dtensor {

Rule reduction(const OpArgs& op, at::IntArrayRef dims, bool keepdim, ReduceOp reduce) {
  Rule rule;
  RuleTerm in, out;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(op.sizes(0).size()); ++d) {
    in.push_back({rule.factor()});
    const bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!reduced) out.push_back(in.back());
    if (reduced && keepdim) out.emplace_back();
  }
  rule.operand(in);
  for (int r = 0; r < std::max(op.result_count(), 1); ++r) rule.result(out);
  return rule.reduce(reduce);
}

namespace {

std::vector<std::int64_t> reduced_dims(const OpArgs& op) {
  if (!op.has_arg("dim")) {
    std::vector<std::int64_t> all(op.sizes(0).size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  return op.dims("dim");
}

bool keepdim(const OpArgs& op) { return op.has_arg("keepdim") && op.boolean("keepdim"); }

Rule reduce_by(const OpArgs& op, ReduceOp reduce) { return reduction(op, reduced_dims(op), keepdim(op), reduce); }

// The reduced dimensions must be whole.
Rule whole_reduction(const OpArgs& op) {
  Rule rule = reduce_by(op, ReduceOp::sum);
  for (const std::int64_t dim : reduced_dims(op)) rule.whole(dim);
  return rule;
}

Rule sum(const OpArgs& op) { return reduce_by(op, ReduceOp::sum).linear({0}); }

Rule mean(const OpArgs& op) {
  return reduce_by(op, ReduceOp::sum).linear({0}).handled_dims(reduced_dims(op), "mean_global_count");
}

// Ranks without elements contribute the identity.
Rule extremum(const OpArgs& op, ReduceOp reduce) {
  return reduce_by(op, reduce)
      .monotone({0}, reduce)
      .handled_dims(reduced_dims(op), "reduce_with_identity")
      .handled_gives(reduce);
}

Rule by_kernel(const OpArgs& op, const char* kernel) {
  return reduce_by(op, ReduceOp::sum).handled_dims(reduced_dims(op), kernel).handled_gives_replicate();
}

Rule norm(const OpArgs& op) { return by_kernel(op, "vector_norm_sharded"); }

void add_simple(RuleBook& book) {
  book.rule("aten::sum", sum);
  book.rule("aten::nansum", [](const OpArgs& op) { return reduce_by(op, ReduceOp::sum); });
  book.rule("aten::mean", mean);
  book.rule("aten::prod", [](const OpArgs& op) { return reduce_by(op, ReduceOp::product); });
  book.rule("aten::count_nonzero", [](const OpArgs& op) { return reduce_by(op, ReduceOp::sum); });
  for (const char* op : {"aten::amax", "aten::max"}) {
    book.rule(op, [](const OpArgs& call) { return extremum(call, ReduceOp::max); });
  }
  for (const char* op : {"aten::amin", "aten::min"}) {
    book.rule(op, [](const OpArgs& call) { return extremum(call, ReduceOp::min); });
  }
  book.rule("aten::any", [](const OpArgs& op) { return reduce_by(op, ReduceOp::max); });
  book.rule("aten::all", [](const OpArgs& op) { return reduce_by(op, ReduceOp::min); });
  book.rule("aten::aminmax", [](const OpArgs& op) { return by_kernel(op, "reduce_with_identity"); });
  book.rule("aten::linalg__powsum", [](const OpArgs& op) { return reduce_by(op, ReduceOp::sum); });
  for (const char* op : {"aten::_aminmax", "aten::_aminmax.dim"}) book.rule(op, whole_reduction);
  book.rule("aten::linalg_vector_norm", norm).reads_scalars();
  book.rule("aten::norm", norm).reads_scalars();
}

// Positions, moments and sums of exponentials: small exchanges instead of the whole dimension.
void add_by_kernel(RuleBook& book) {
  const auto add = [&](const char* op, const char* kernel) {
    book.rule(op, [kernel](const OpArgs& call) { return by_kernel(call, kernel); });
  };
  for (const char* op : {"aten::argmax", "aten::argmin"}) add(op, "argmax_sharded");
  for (const char* op : {"aten::max.dim", "aten::min.dim"}) add(op, "max_dim_sharded");
  for (const char* op :
       {"aten::var.correction", "aten::std.correction", "aten::var_mean.correction", "aten::std_mean.correction"}) {
    add(op, "var_sharded");
  }
  add("aten::logsumexp", "logsumexp_sharded");
}

// Along one dimension that must be whole, result of reduced sizes.
void add_whole(RuleBook& book) {
  for (const char* op :
       {"aten::median", "aten::median.dim", "aten::nanmedian", "aten::nanmedian.dim", "aten::mode", "aten::kthvalue"}) {
    book.rule(op, whole_reduction);
  }
}

// Results of the operand's sizes (but perhaps along the named dimension).
Rule along(const OpArgs& op) {
  Rule rule = same(op);
  return op.sizes(0).empty() ? rule : rule.whole(op.dim("dim"));
}

// Another dimension is split instead, where there is one: an all-to-all costs less than a gather.
Rule sort(const OpArgs& op) {
  if (op.sizes(0).empty()) return same(op);
  const auto dim = op.dim("dim");
  Rule rule = same(op);
  for (std::int64_t d = 0; d < std::ssize(op.sizes(0)); ++d) {
    if (d == dim) continue;
    if (op.sizes(0)[static_cast<std::size_t>(d)] > 1) return along(op);
    rule.whole(d);
  }
  return rule.handled_dims({dim}, "sort_sharded");
}

// The best of each part are gathered: results are whole along the dimension.
Rule topk(const OpArgs& op) {
  if (op.sizes(0).empty()) return same(op);
  Rule rule = reduction(op, {op.dim("dim")}, true);
  return rule.handled_dims({op.dim("dim")}, "topk_sharded").handled_gives_replicate();
}

Rule scan(const OpArgs& op, const char* kernel) {
  Rule rule = same(op);
  return op.sizes(0).empty() ? rule : rule.handled_dims({op.dim("dim")}, kernel);
}

void add_along(RuleBook& book) {
  for (const char* op : {"aten::_cummax_helper", "aten::_cummin_helper", "aten::cummax", "aten::cummin"}) {
    book.rule(op, along);
  }
  for (const char* op : {"aten::sort", "aten::sort.stable"}) book.rule(op, sort);
  book.rule("aten::topk", topk);
  book.rule("aten::cumsum", [](const OpArgs& op) { return scan(op, "cumsum_sharded").linear({0}); });
  book.rule("aten::cumprod", [](const OpArgs& op) { return scan(op, "cumprod_sharded"); });
  for (const char* op : {"aten::logcumsumexp", "aten::_logcumsumexp"}) {
    book.rule(op, [](const OpArgs& call) { return scan(call, "logcumsumexp_sharded"); });
  }
}

}  // namespace

void add_reduction_rules(RuleBook& book) {
  add_simple(book);
  add_by_kernel(book);
  add_whole(book);
  add_along(book);
}

}  // namespace dtensor
