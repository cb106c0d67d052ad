// The families of rules. Each file adds its own; all.cpp calls them, since static archives drop what registers itself.
#pragma once

#include "dtensor/rule.h"

namespace dtensor {

void add_all_rules(RuleBook& book);

void add_pointwise_rules(RuleBook& book);
void add_product_rules(RuleBook& book);
void add_reduction_rules(RuleBook& book);
void add_view_rules(RuleBook& book);

}  // namespace dtensor
