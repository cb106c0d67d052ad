// The families of rules, one file each (add_<file>_rules). rule_book.cpp calls the functions, since static archives
// drop objects that only register themselves.
#pragma once

#include "dtensor/rule.h"

namespace dtensor {

void add_unsupported_rules(RuleBook& book);
void add_pointwise_rules(RuleBook& book);
void add_matmul_rules(RuleBook& book);
void add_reductions_rules(RuleBook& book);
void add_views_rules(RuleBook& book);
void add_cat_pad_rules(RuleBook& book);
void add_indexing_rules(RuleBook& book);
void add_like_factories_rules(RuleBook& book);
void add_foreach_rules(RuleBook& book);
void add_losses_rules(RuleBook& book);
void add_norms_rules(RuleBook& book);
void add_attention_rules(RuleBook& book);
void add_random_rules(RuleBook& book);
void add_linalg_rules(RuleBook& book);
void add_pooling_rules(RuleBook& book);
void add_convolution_rules(RuleBook& book);
void add_transforms_rules(RuleBook& book);
void add_fused_rules(RuleBook& book);

}  // namespace dtensor
