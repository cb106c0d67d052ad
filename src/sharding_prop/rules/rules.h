// The families of rules. Each file adds its rules, and rule_book.cpp calls the functions, since static archives drop
// objects that only register themselves.
#pragma once

#include "dtensor/rule.h"

namespace dtensor {

void add_refused(RuleBook& book);
void add_pointwise_rules(RuleBook& book);
void add_product_rules(RuleBook& book);
void add_reduction_rules(RuleBook& book);
void add_view_rules(RuleBook& book);
void add_assembly_rules(RuleBook& book);
void add_indexing_rules(RuleBook& book);
void add_like_rules(RuleBook& book);
void add_list_rules(RuleBook& book);
void add_loss_rules(RuleBook& book);
void add_norm_rules(RuleBook& book);
void add_attention_rules(RuleBook& book);
void add_random_rules(RuleBook& book);
void add_linalg_rules(RuleBook& book);
void add_spatial_rules(RuleBook& book);
void add_convolution_rules(RuleBook& book);
void add_transform_rules(RuleBook& book);
void add_fused_rules(RuleBook& book);

}  // namespace dtensor
