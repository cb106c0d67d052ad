// Matrix products: contracted factors leave a Partial sum, biases are added once.
#include "sharding_prop/rules/rules.h"

namespace dtensor {

void add_product_rules(RuleBook& book) {
  book.rule("aten::mm", "mk, kn -> mn").linear({0}, {1});
  book.rule("aten::bmm", "bmk, bkn -> bmn").linear({0}, {1});
  book.rule("aten::mv", "mk, k -> m").linear({0}, {1});
  book.rule("aten::dot", "k, k -> ").linear({0}, {1});
  book.rule("aten::vdot", "k, k -> ").linear({0}, {1});
  book.rule("aten::addmm", "+mn, mk, kn -> mn").linear({0, 1}, {0, 2});
  book.rule("aten::_addmm_activation", "+mn, mk!, k!n -> mn");
  book.rule("aten::baddbmm", "+bmn, bmk, bkn -> bmn").linear({0, 1}, {0, 2});
  book.rule("aten::addbmm", "+mn, bmk, bkn -> mn").linear({0, 1}, {0, 2});
  book.rule("aten::addmv", "+m, mk, k -> m").linear({0, 1}, {0, 2});
  book.rule("aten::addr", "+mn, m, n -> mn").linear({0, 1}, {0, 2});
  book.rule("aten::ger", "m, n -> mn").linear({0}, {1});
  book.rule("aten::linear", "...k, nk, +n -> ...n").linear({0, 2}, {1, 2});
  book.rule("aten::linear_backward", "...k, ...n, nk -> ~, ~, ~").whole("kn");
  book.rule("aten::trace", "i!j! -> ");
}

}  // namespace dtensor
