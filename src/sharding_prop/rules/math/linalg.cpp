// Linear algebra: matrices are unsharded, batches of matrices may be sharded.
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

// Matrices and vectors are unsharded; `...` are batches.
Rule batches(const char* text) { return Rule(text).sharded_by_kernel("...", kSkipEmpty); }

// The strides of the full batch decide whether the matrix or its transpose is factored.
Rule factored(const char* text) {
  return Rule(text).sharded_by_kernel("...", "factor_full_matrix").kernel("factor_full_matrix");
}

// LAPACK's order: columns are contiguous.
OutputMeta by_columns(at::IntArrayRef sizes, c10::ScalarType dtype) {
  OutputMeta meta = dense_meta(sizes, dtype);
  const std::size_t rank = sizes.size();
  meta.strides[rank - 2] = 1;
  meta.strides[rank - 1] = std::max<std::int64_t>(sizes[rank - 2], 1);
  return meta;
}

// The batch dimensions of both operands, broadcast, and the matrix of operand `last`.
std::vector<OutputMeta> broadcast_solution(const OpArgs& op, int last) {
  const auto lead = [&](int i) { return op.sizes(i).drop_back(2); };
  const auto batch = at::infer_size_dimvector(lead(0), lead(1));
  return {by_columns(joined(batch, op.sizes(last).slice(op.sizes(last).size() - 2)), op.dtype(0))};
}

std::vector<OutputMeta> eigen_outputs(const OpArgs& op) {
  const auto type = c10::toComplexType(op.dtype(0));
  return {dense_meta(op.sizes(0).drop_back(1), type), by_columns(op.sizes(0).require(2), type)};
}

std::vector<OutputMeta> geqrf_outputs(const OpArgs& op) {
  at::DimVector tau(op.sizes(0).require(2).drop_back(1));
  tau.back() = std::min(tau.back(), op.sizes(0).back());
  return {by_columns(op.sizes(0), op.dtype(0)), dense_meta(tau, op.dtype(0))};
}

// Each result has a row of coefficients.
std::vector<OutputMeta> combined_outputs(const OpArgs& op) {
  at::DimVector sizes(op.sizes(0).require(1));
  sizes[0] = op.sizes(1).require(1)[0];
  return {dense_meta(sizes, op.dtype(0))};
}

std::vector<OutputMeta> transposed_output(const OpArgs& op) {
  at::DimVector sizes(op.sizes(0).require(2));
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  return {dense_meta(sizes, op.dtype(0))};
}

// Adds operators without a meta kernel.
void add_outputs(RuleBook& book) {
  const auto like = [](int operand) { return [operand](const OpArgs& op) { return like_operands(op, {operand}); }; };
  const auto columns = [](int operand) {
    return [operand](const OpArgs& op) {
      return std::vector{by_columns(op.sizes(operand).require(2), op.dtype(operand))};
    };
  };
  const auto add = [&](const char* op, const char* text, Rule::Outputs outputs) {
    book.rule(op, batches(text)).outputs(std::move(outputs));
  };
  for (const char* op : {"aten::linalg_matrix_exp", "aten::linalg_matrix_sqrth"}) add(op, "...__ -> ...__", like(0));
  add("aten::cholesky_inverse", "...__ -> ...__", columns(0));
  const auto reflected = [columns](int matrix) {
    return [columns, matrix](const OpArgs& op) {
      TORCH_CHECK(op.sizes(0).drop_back(2).equals(op.sizes(1).drop_back(1)),
                  "expected batch dimensions of tau to be equal to input.shape[:-2], got tau of sizes ", op.sizes(1),
                  " for an input of sizes ", op.sizes(0));
      return columns(matrix)(op);
    };
  };
  add("aten::linalg_householder_product", "...__, ..._ -> ...__", reflected(0));
  add("aten::ormqr", "...__, ..._, ...__ -> ...__", reflected(2));
  add("aten::_cholesky_solve_helper", "...__, ...__ -> ...__", columns(0));
  add("aten::cholesky_solve", "...__, ...__ -> ...__", [](const OpArgs& op) { return broadcast_solution(op, 0); });
  add("aten::linalg_solve_triangular", "...__, ...__ -> ...__",
      [](const OpArgs& op) { return broadcast_solution(op, 1); });
  add("aten::geqrf", "...__ -> ...__, ..._", geqrf_outputs);
  add("aten::linalg_eig", "...__ -> ..._, ...__", eigen_outputs);
  for (const char* op : {"aten::linalg_eigvals", "aten::_linalg_eigvals"}) {
    add(op, "...__ -> ..._", [](const OpArgs& call) { return std::vector{eigen_outputs(call)[0]}; });
  }
  add("aten::linalg_pinv.atol_rtol_tensor", "...__, ..., ... -> ...__", transposed_output);
}

// Whether b is a batch of vectors for the matrices a.
bool is_vector(const OpArgs& op, int a, int b) {
  const auto matrix = op.sizes(a), right = op.sizes(b);
  return right.size() == 1 || (right.size() + 1 == matrix.size() && right.equals(matrix.slice(0, right.size())));
}

Rule solve_ex(const OpArgs& op) {
  return factored(is_vector(op, 0, 1) ? "...__, ..._ -> ..._, ...__, ..._, ..."
                                      : "...__, ...__ -> ...__, ...__, ..._, ...");
}

Rule lstsq(const OpArgs& op) {
  return batches(is_vector(op, 0, 1) ? "...__, ..._ -> ..._, ..., ..., ..._"
                                     : "...__, ...__ -> ...__, ..._, ..., ..._");
}

// Multiplies three operands, each without the dimensions in its expand list, and sums over sumdim.
Rule trilinear(const OpArgs& op) {
  const auto total = op.sizes(0).size() + op.integers("expand1").size();
  const auto without = [&](const char* list) {
    const auto gone = op.integers(list);
    std::string term;
    for (std::size_t d = 0; d < total; ++d) {
      const bool stays = std::find(gone.begin(), gone.end(), static_cast<std::int64_t>(d)) == gone.end();
      if (stays) term += static_cast<char>('a' + d);
    }
    return term;
  };
  const std::string operands = without("expand1") + ", " + without("expand2") + ", " + without("expand3");
  return Rule(operands + " -> " + without("sumdim")).linear({0}, {1}, {2});
}

// The gradient has the batch dimensions of both operands. Without elements it is zeros like the operand.
bool has_distances(const OpArgs& op) {
  return c10::multiply_integers(op.sizes(0)) != 0 && c10::multiply_integers(op.sizes(1)) != 0;
}

std::vector<OutputMeta> cdist_gradient(const OpArgs& op) {
  if (!has_distances(op)) return {dense_meta(op.sizes(1), op.dtype(1))};
  const auto last = op.sizes(1).require(2).slice(op.sizes(1).size() - 2);
  return {dense_meta(joined(op.sizes(0).drop_back(2), last), op.dtype(1))};
}

Rule cdist_backward(const OpArgs& op) {
  if (!has_distances(op)) return Rule();
  return Rule("...pr, ...pm!, ...rm!, ...pr -> ...pm").linear({0}).kernel("skip_empty");
}

void add_distances(RuleBook& book) {
  for (const char* op : {"aten::_cdist_forward", "aten::_euclidean_dist"}) {
    book.rule(op, "...pm!, ...rm! -> ...pr");
  }
  book.rule("aten::_cdist_backward", cdist_backward, "...pr, ...pm!, ...rm!, ...pr -> ...pm of elements")
      .outputs(cdist_gradient);
  for (const char* op : {"aten::_pdist_forward", "aten::_pdist_backward"}) {
    book.replicate(op, "every pair of rows counts");
  }
}

}  // namespace

void add_linalg_rules(RuleBook& book) {
  book.rule("aten::_linalg_det", factored("...__ -> ..., ...__, ..._"));
  book.rule("aten::_linalg_slogdet", factored("...__ -> ..., ..., ...__, ..._"));
  constexpr std::pair<const char*, const char*> kTexts[] = {{"aten::_linalg_eigh", "...__ -> ..._, ...__"},
                                                            {"aten::_linalg_svd", "...__ -> ...__, ..._, ...__"},
                                                            {"aten::linalg_cholesky_ex", "...__ -> ...__, ..."},
                                                            {"aten::linalg_inv_ex", "...__ -> ...__, ..."},
                                                            {"aten::linalg_ldl_factor_ex", "...__ -> ...__, ..._, ..."},
                                                            {"aten::linalg_lu", "...__ -> ...__, ...__, ...__"},
                                                            {"aten::linalg_lu_factor_ex", "...__ -> ...__, ..._, ..."},
                                                            {"aten::linalg_qr", "...__ -> ...__, ...__"},
                                                            {"aten::linalg_polar", "...__ -> ...__, ...__"},
                                                            {"aten::triangular_solve", "...__, ...__ -> ...__, ...__"}};
  constexpr std::pair<const char*, const char*> kPivoted[] = {
      {"aten::linalg_ldl_solve", "...__, ..._, ...__ -> ...__"},
      {"aten::linalg_lu_solve", "...__, ..._, ...__ -> ...__"},
      {"aten::lu_unpack", "...__, ..._ -> ...__, ...__, ...__"}};
  for (const auto& [op, text] : kTexts) book.rule(op, batches(text));
  for (const auto& [op, text] : kPivoted)
    book.rule(op, batches(text)).restricts_values();  // a pivot of 0 makes LAPACK write out of bounds
  add_outputs(book);
  book.rule("aten::_linalg_solve_ex", solve_ex, "...__, ..._ or ...__");
  book.rule("aten::linalg_lstsq", lstsq, "...__, ..._ or ...__");
  book.rule("aten::_compute_linear_combination", "j!X, ij! -> iX")
      .linear({0}, {1})
      .nonempty("X")
      .outputs(combined_outputs);
  book.rule("aten::linalg_cross", "X[dim!], X[dim] -> X[dim]").linear({0}, {1});
  book.rule("aten::renorm", "X![dim] -> X[dim]").reads_scalars();  // norms over all dimensions but one
  book.rule("aten::_trilinear", trilinear, "by expand1, expand2, expand3, sumdim");
  add_distances(book);
}

}  // namespace dtensor
