// Adds every family to the book.
#include "sharding_prop/rules/rules.h"

namespace dtensor {

void add_all_rules(RuleBook& book) {
  add_pointwise_rules(book);
  add_product_rules(book);
  add_reduction_rules(book);
  add_view_rules(book);
}

}  // namespace dtensor
