// Which rule an operator follows.
#pragma once

#include <string>

#include "sharding_prop/op_call.h"

namespace dtensor {

// The rule for this call; outputs must be inferred unless the rule's function does not look at them.
Rule rule_for(const OpCall& call);

// The book's entries (dtensor/rule.h adds to it).
RuleEntryPtr find_entry(const std::string& name);
RuleEntryPtr find_tag_entry(c10::ArrayRef<at::Tag> tags);

}  // namespace dtensor
