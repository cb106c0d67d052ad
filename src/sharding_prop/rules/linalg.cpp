// Linear algebra: matrices are whole, batches of them shard.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/terms.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

Rule& add_batched(RuleBook& book, const char* op, std::vector<int> core) {
  return book.rule(op, [core](const OpArgs& call) {
    std::vector<int> cores = core;
    cores.resize(static_cast<std::size_t>(call.operand_count()), -1);
    return batched(call, cores);
  });
}

at::DimVector of(at::IntArrayRef sizes) { return {sizes.begin(), sizes.end()}; }

// LAPACK's order: columns follow each other.
OutputMeta by_columns(const at::DimVector& sizes, c10::ScalarType dtype) {
  OutputMeta meta = dense_meta(sizes, dtype);
  const std::size_t rank = sizes.size();
  meta.strides[rank - 2] = 1;
  meta.strides[rank - 1] = std::max<std::int64_t>(sizes[rank - 2], 1);
  return meta;
}

// Batches of both, broadcast, and operand 1 - or, for `last` = 0, operand 0 - as the matrix.
std::vector<OutputMeta> broadcast_solution(const OpArgs& op, int last) {
  const auto lead = [&](int i) { return op.sizes(i).drop_back(2); };
  at::DimVector sizes = at::infer_size_dimvector(lead(0), lead(1));
  sizes.append({op.sizes(last).from_end(2), op.sizes(last).from_end(1)});
  return {by_columns(sizes, op.dtype(0))};
}

std::vector<OutputMeta> eigen_outputs(const OpArgs& op) {
  const auto type = c10::toComplexType(op.dtype(0));
  return {dense_meta(op.sizes(0).drop_back(1), type), by_columns(of(op.sizes(0).require(2)), type)};
}

std::vector<OutputMeta> geqrf_outputs(const OpArgs& op) {
  at::DimVector tau = of(op.sizes(0).require(2).drop_back(1));
  tau.back() = std::min(tau.back(), op.sizes(0).back());
  return {by_columns(of(op.sizes(0)), op.dtype(0)), dense_meta(tau, op.dtype(0))};
}

std::vector<OutputMeta> transposed_output(const OpArgs& op) {
  at::DimVector sizes = of(op.sizes(0).require(2));
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  return {dense_meta(sizes, op.dtype(0))};
}

// Operators without a meta kernel.
void add_outputs(RuleBook& book) {
  const auto like = [](int operand) { return [operand](const OpArgs& op) { return like_operands(op, {operand}); }; };
  const auto columns = [](int operand) {
    return [operand](const OpArgs& op) {
      return std::vector{by_columns(of(op.sizes(operand).require(2)), op.dtype(operand))};
    };
  };
  for (const char* op : {"aten::linalg_matrix_exp", "aten::linalg_matrix_sqrth"}) {
    add_batched(book, op, {2}).outputs(like(0));
  }
  add_batched(book, "aten::cholesky_inverse", {2}).outputs(columns(0));
  add_batched(book, "aten::linalg_householder_product", {2, 1}).outputs(columns(0));
  add_batched(book, "aten::ormqr", {2, 1, 2}).outputs(columns(2));
  add_batched(book, "aten::cholesky_solve", {2, 2}).outputs([](const OpArgs& op) { return broadcast_solution(op, 0); });
  add_batched(book, "aten::linalg_solve_triangular", {2, 2}).outputs([](const OpArgs& op) {
    return broadcast_solution(op, 1);
  });
  add_batched(book, "aten::geqrf", {2}).outputs(geqrf_outputs);
  add_batched(book, "aten::linalg_eig", {2}).outputs(eigen_outputs);
  add_batched(book, "aten::linalg_pinv.atol_rtol_tensor", {2, 0, 0}).outputs(transposed_output);
}

// Whether b is a batch of vectors for the matrices a.
bool is_vector(const OpArgs& op, int a, int b) {
  const auto matrix = op.sizes(a), right = op.sizes(b);
  return right.size() == 1 || (right.size() + 1 == matrix.size() && right.equals(matrix.slice(0, right.size())));
}

Rule solve(const OpArgs& op) { return batched(op, {2, is_vector(op, 0, 1) ? 1 : 2}); }

Rule cross(const OpArgs& op) {
  return pointwise_but(op, {c10::maybe_wrap_dim(op.integer("dim"), std::ssize(op.result(0).sizes))}).linear({0}, {1});
}

// Norms over all dimensions but one.
Rule renorm(const OpArgs& op) {
  Rule rule = same(op);
  for (std::int64_t d = 0; d < std::ssize(op.sizes(0)); ++d) {
    if (d != op.dim("dim")) rule.whole(d);
  }
  return rule;
}

// Three operands, each lacking the dimensions in its expand list, multiplied and summed over sumdim.
Rule trilinear(const OpArgs& op) {
  const auto sumdim = op.integers("sumdim");
  const auto total = op.sizes(0).size() + op.integers("expand1").size();
  Rule rule;
  RuleTerm all;
  for (std::size_t d = 0; d < total; ++d) all.push_back({rule.factor()});
  const auto without = [&](const std::vector<std::int64_t>& gone) {
    RuleTerm term;
    for (std::size_t d = 0; d < total; ++d) {
      if (std::find(gone.begin(), gone.end(), static_cast<std::int64_t>(d)) == gone.end()) term.push_back(all[d]);
    }
    return term;
  };
  for (const char* gone : {"expand1", "expand2", "expand3"}) rule.operand(without(op.integers(gone)));
  return rule.result(without(sumdim)).linear({0}, {1}, {2});
}

// The gradient has the batch of both operands, but for nothing: then it is zeros like the operand.
bool has_distances(const OpArgs& op) {
  return c10::multiply_integers(op.sizes(0)) != 0 && c10::multiply_integers(op.sizes(1)) != 0;
}

std::vector<OutputMeta> cdist_gradient(const OpArgs& op) {
  if (!has_distances(op)) return {dense_meta(op.sizes(1), op.dtype(1))};
  at::DimVector sizes = of(op.sizes(0).drop_back(2));
  sizes.append({op.sizes(1).from_end(2), op.sizes(1).from_end(1)});
  return {dense_meta(sizes, op.dtype(1))};
}

Rule cdist_backward(const OpArgs& op) {
  if (!has_distances(op)) return Rule();
  return Rule("...pr, ...pm!, ...rm!, ...pr -> ...pm").linear({0}).kernel("skip_empty");
}

void add_distances(RuleBook& book) {
  for (const char* op : {"aten::_cdist_forward", "aten::_euclidean_dist"}) {
    book.rule(op, "...pm!, ...rm! -> ...pr");
  }
  book.rule("aten::_cdist_backward", cdist_backward).outputs(cdist_gradient);
  for (const char* op : {"aten::_pdist_forward", "aten::_pdist_backward"}) {
    book.replicate(op, "every pair of rows counts");
  }
}

}  // namespace

void add_linalg_rules(RuleBook& book) {
  for (const char* op : {"aten::_linalg_det", "aten::_linalg_slogdet", "aten::_linalg_eigh", "aten::_linalg_eigvals",
                         "aten::linalg_eigvals", "aten::_linalg_svd", "aten::linalg_cholesky_ex", "aten::linalg_inv_ex",
                         "aten::linalg_ldl_factor_ex", "aten::linalg_lu", "aten::linalg_lu_factor_ex",
                         "aten::linalg_qr", "aten::linalg_polar", "aten::_compute_linear_combination"}) {
    add_batched(book, op, {2});
  }
  add_outputs(book);
  add_batched(book, "aten::linalg_ldl_solve", {2, 1, 2});
  add_batched(book, "aten::linalg_lu_solve", {2, 1, 2});
  add_batched(book, "aten::lu_unpack", {2, 1});
  add_batched(book, "aten::triangular_solve", {2, 2});
  add_batched(book, "aten::_cholesky_solve_helper", {2, 2});
  book.rule("aten::_linalg_solve_ex", solve);
  book.rule("aten::linalg_lstsq", solve);
  book.rule("aten::linalg_cross", cross);
  book.rule("aten::renorm", renorm).reads_scalars();
  book.rule("aten::_trilinear", trilinear);
  add_distances(book);
}

}  // namespace dtensor
