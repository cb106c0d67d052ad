// Matrix products: contracted factors leave a Partial sum, biases are added once.
#include "sharding_prop/rules/metas.h"
#include "sharding_prop/rules/rules.h"

namespace dtensor {
void add_product_rules(RuleBook& book) {
  // beta * self + alpha * a * b. A kernel without products multiplies self by beta, which integers refuse where beta is
  // none: every rank needs some.
  const auto biased = [&](const char* op, const Rule& rule, const char* contracted) -> Rule& {
    const auto for_call = [rule, contracted](const OpArgs& call) {
      return c10::isIntegralType(call.dtype(1), true) ? Rule(rule).nonempty(contracted) : rule;
    };
    return book.rule(op, for_call, rule.str() + ", nonempty for integers");
  };
  book.rule("aten::mm", "mk, kn -> mn").linear({0}, {1});
  book.rule("aten::bmm", "bmk, bkn -> bmn").linear({0}, {1});
  book.rule("aten::mv", "mk, k -> m").linear({0}, {1});
  const auto dot = [](const OpArgs& op) {
    TORCH_CHECK(op.sizes(0).equals(op.sizes(1)), "inconsistent tensor size, expected vectors of the same length, got ",
                op.sizes(0), " and ", op.sizes(1));
    return Rule("k, k -> ").linear({0}, {1});
  };
  for (const char* op : {"aten::dot", "aten::vdot"}) book.rule(op, dot, "k, k -> ");
  biased("aten::addmm", Rule("+mn, mk, kn -> mn").linear({0, 1}, {0, 2}), "k").unread_if_zero("beta");
  book.rule("aten::_addmm_activation", "+mn, mk!, k!n -> mn").unread_if_zero("beta");
  biased("aten::baddbmm", Rule("+bmn, bmk, bkn -> bmn").linear({0, 1}, {0, 2}), "k").unread_if_zero("beta");
  // addbmm_ gives a smaller self the result's sizes.
  const auto added_up = [](const OpArgs& op) {
    return std::vector{dense_meta({op.sizes(1)[1], op.sizes(2)[2]}, op.dtype(1))};
  };
  biased("aten::addbmm", Rule("+mn, bmk, bkn -> mn").linear({0, 1}, {0, 2}), "bk")
      .unread_if_zero("beta")
      .outputs(added_up);
  // The kernel returns a self that is expanded as it is where a rank has no rows or no products.
  const auto addmv = [](const OpArgs& op) {
    const bool expanded = op.sizes(0).empty() || op.sizes(0)[0] == 1;
    Rule rule = Rule("+m, mk, k -> m").linear({0, 1}, {0, 2});
    if (expanded) return rule.nonempty("mk");
    return c10::isIntegralType(op.dtype(1), true) ? rule.nonempty("k") : rule;
  };
  book.rule("aten::addmv", addmv, "+m, mk, k -> m, nonempty for integers and an expanded self").unread_if_zero("beta");
  book.rule("aten::addr", "+mn, m, n -> mn").linear({0, 1}, {0, 2}).unread_if_zero("beta");
  book.rule("aten::ger", "m, n -> mn").linear({0}, {1});
  biased("aten::linear", Rule("...k, nk, +n -> ...n").linear({0, 2}, {1, 2}), "k");
  book.rule("aten::linear_backward", "...k, ...n, nk -> ...k@12, nk@01, n@1").linear({0}, {1}, {2});
  book.rule("aten::trace", "i!j! -> ");
}

}  // namespace dtensor
