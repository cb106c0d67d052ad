// Adds every family to the book.
#include "sharding_prop/rules/rules.h"

namespace dtensor {

void add_all_rules(RuleBook& book) {
  add_refused(book);
  add_pointwise_rules(book);
  add_product_rules(book);
  add_reduction_rules(book);
  add_view_rules(book);
  add_assembly_rules(book);
  add_indexing_rules(book);
  add_like_rules(book);
  add_list_rules(book);
  add_loss_rules(book);
  add_norm_rules(book);
  add_attention_rules(book);
  add_random_rules(book);
  add_linalg_rules(book);
  add_spatial_rules(book);
  add_convolution_rules(book);
  add_transform_rules(book);
}

}  // namespace dtensor
