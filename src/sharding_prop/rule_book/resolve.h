// Which rule an operator follows.
#pragma once

#include <string>

#include "sharding_prop/operators/op_call.h"

namespace dtensor {

// The rule for this call; outputs must be inferred unless the rule's function does not look at them.
Rule rule_for(const OpCall& call);

// The book's entries (dtensor/rule.h adds to it).
RuleEntryPtr find_rule_entry(const std::string& name);
RuleEntryPtr find_rule_entry_by_tag(c10::ArrayRef<at::Tag> tags);

}  // namespace dtensor
