// Matrix products: contracted factors give Partial(sum), and biases are added once.
#include "internal/kernels/gpu_kernels.h"
#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

// Checks the operands of _grouped_mm, equally on every rank. self and mat2 are matrices whose groups end at `offs`, or
// stacks with one matrix per group.
void check_grouped(const OpArgs& op) {
  const auto a = op.sizes(0), b = op.sizes(1);
  const auto is_matrix = [](const OpArgs::Extents& sizes) { return sizes.size() == 2; };
  TORCH_CHECK((is_matrix(a) || a.size() == 3) && (is_matrix(b) || b.size() == 3),
              "_grouped_mm: expected operands of 2 or 3 dimensions, got ", a, " and ", b);
  const auto type = op.dtype(0);
  TORCH_CHECK(type == op.dtype(1) && (type == c10::kBFloat16 || type == c10::kHalf || type == c10::kFloat),
              "_grouped_mm: expected two operands of float32, bfloat16 or float16, got ", type, " and ", op.dtype(1));
  TORCH_CHECK(a.back() == b.from_end(2), "_grouped_mm: expected as many columns as rows, got ", a, " and ", b);
  TORCH_CHECK(op.defined(2) == (is_matrix(a) || is_matrix(b)), "_grouped_mm: expected `offs` where an operand is a ",
              "matrix, and none where both are stacks, got ", a, " and ", b, op.defined(2) ? " with" : " without",
              " it");
  TORCH_CHECK(!op.defined(2) || (op.sizes(2).size() == 1 && op.dtype(2) == c10::kInt),
              "_grouped_mm: expected `offs` of one dimension and int32, got ", op.sizes(2), " of ", op.dtype(2));
  for (const int stack : {0, 1}) {
    if (is_matrix(op.sizes(stack))) continue;
    const auto groups = op.defined(2) ? op.sizes(2)[0] : a[0];
    TORCH_CHECK(op.sizes(stack)[0] == groups, "_grouped_mm: expected ", groups, " matrices, got ", op.sizes(stack));
  }
  TORCH_CHECK(!op.defined(3), "_grouped_mm: `bias` is not supported by ATen");
  const auto& out_type = op.arg("out_dtype");
  TORCH_CHECK(out_type.isNone() || out_type.toScalarType() == type, "_grouped_mm: expected an out_dtype of ", type);
}

std::vector<OutputMeta> grouped_outputs(const OpArgs& op) {
  check_grouped(op);
  const auto a = op.sizes(0), b = op.sizes(1);
  const bool one_matrix = a.size() != b.size();
  at::DimVector sizes{a.from_end(2), b.back()};
  if (!one_matrix) sizes.insert(sizes.begin(), a.size() == 3 ? a[0] : op.sizes(2)[0]);
  return {dense_meta(sizes, op.dtype(0))};
}

// m, n and k are those of a product. If the dimension of the groups (m, n or k) or the groups e are sharded, the local
// kernel computes the boundaries of groups. It returns the rows of the rank's own groups.
Rule grouped_mm(const OpArgs& op) {
  const bool stack = op.sizes(0).size() == 3;
  if (op.sizes(1).size() == 3) {
    if (stack) return Rule("emk, ekn, ~, ~ -> emn").linear({0}, {1}).kernel("grouped_mm");
    return Rule("mk, ekn, ~, ~ -> mn").linear({0}, {1}).sharded_by_kernel("me", "grouped_mm").kernel("grouped_mm");
  }
  if (stack)
    return Rule("emk, kn, ~, ~ -> mn").linear({0}, {1}).sharded_by_kernel("ne", "grouped_mm").kernel("grouped_mm");
  return Rule("mk, kn, ~, ~ -> emn").linear({0}, {1}).sharded_by_kernel("ke", "grouped_mm").kernel("grouped_mm");
}

Rule dot(const OpArgs& op) {
  TORCH_CHECK(op.sizes(0).equals(op.sizes(1)), "inconsistent tensor size, expected vectors of the same length, got ",
              op.sizes(0), " and ", op.sizes(1));
  return Rule("k, k -> ").linear({0}, {1});
}

// If a rank has no rows or no products, the kernel returns an expanded self unchanged.
Rule addmv(const OpArgs& op) {
  const bool expanded = op.sizes(0).empty() || op.sizes(0)[0] == 1;
  Rule rule = Rule("+m, mk, k -> m").linear({0, 1}, {0, 2});
  if (expanded) return rule.nonempty("mk");
  return c10::isIntegralType(op.dtype(1), true) ? rule.nonempty("k") : rule;
}

// Outputs that may need aligned rows on a rank (internal/kernels/aligned_rows.h) take a local kernel.
Rule linear(const OpArgs& op) {
  Rule rule = Rule("...k, nk, +n -> ...n").linear({0, 2}, {1, 2});
  if (c10::isIntegralType(op.dtype(1), true)) return rule.nonempty("k");
  const bool is_half = op.dtype(1) == at::kHalf || op.dtype(1) == at::kBFloat16;
  const bool odd = op.sizes(1).size() == 2 && op.sizes(1)[0] % 64 != 0;
  return is_half && odd && takes_gpu_kernel(GpuKernel::aligned_rows, op.device()) ? rule.kernel("linear_aligned")
                                                                                  : rule;
}

}  // namespace

void add_matmul_rules(RuleBook& book) {
  // beta * self + alpha * a * b. Without products, the kernel multiplies self by beta, which integer tensors reject for
  // a fractional beta. So every rank needs products.
  const auto biased = [&](const char* op, const Rule& rule, const char* contracted) -> Rule& {
    const auto for_call = [rule, contracted](const OpArgs& call) {
      return c10::isIntegralType(call.dtype(1), true) ? Rule(rule).nonempty(contracted) : rule;
    };
    return book.rule(op, for_call, rule.str() + ", nonempty for integers");
  };
  book.rule("aten::mm", "mk, kn -> mn").linear({0}, {1});
  book.rule("aten::bmm", "bmk, bkn -> bmn").linear({0}, {1});
  book.rule("aten::mv", "mk, k -> m").linear({0}, {1});
  for (const char* op : {"aten::dot", "aten::vdot"}) book.rule(op, dot, "k, k -> ");
  biased("aten::addmm", Rule("+mn, mk, kn -> mn").linear({0, 1}, {0, 2}), "k").values_unused_if_zero("beta");
  book.rule("aten::_addmm_activation", "+mn, mk!, k!n -> mn").values_unused_if_zero("beta");
  biased("aten::baddbmm", Rule("+bmn, bmk, bkn -> bmn").linear({0, 1}, {0, 2}), "k").values_unused_if_zero("beta");
  // addbmm_ resizes a smaller self to the sizes of the result.
  const auto added_up = [](const OpArgs& op) {
    return std::vector{dense_meta({op.sizes(1)[1], op.sizes(2)[2]}, op.dtype(1))};
  };
  biased("aten::addbmm", Rule("+mn, bmk, bkn -> mn").linear({0, 1}, {0, 2}), "bk")
      .values_unused_if_zero("beta")
      .outputs(added_up);
  book.rule("aten::addmv", addmv, "+m, mk, k -> m, nonempty for integers and an expanded self")
      .values_unused_if_zero("beta");
  book.rule("aten::addr", "+mn, m, n -> mn").linear({0, 1}, {0, 2}).values_unused_if_zero("beta");
  book.rule("aten::ger", "m, n -> mn").linear({0}, {1});
  book.rule("aten::linear", linear,
            "...k, nk, +n -> ...n  [linear {0,2}; linear {1,2}], nonempty for integers, kernel for half types");
  book.rule("aten::linear_backward", "...k, ...n, nk -> ...k@12, nk@01, n@1").linear({0}, {1}, {2});
  book.rule("aten::trace", "i!j! -> ");
  book.rule("aten::_grouped_mm", grouped_mm, "products of groups of rows, columns or both")
      .follows_parameter_placement()
      .no_meta()
      .outputs(grouped_outputs);
}

}  // namespace dtensor
