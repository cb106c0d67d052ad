// Finds the rule of an operator.
#pragma once

#include <string>

#include "sharding_prop/operators/op_call.h"

namespace dtensor {

// The rule for this call. Outputs must be inferred, unless the rule's function does not read them.
Rule rule_for(const OpCall& call);

// Name of the operator from which an in-place, out= or _copy operator derives; empty for others.
std::string base_name(const OpInfo& info);

// Entries of the rule book (see dtensor/rule.h).
RuleEntryPtr find_rule_entry(const std::string& name);
RuleEntryPtr find_rule_entry_by_tag(c10::ArrayRef<at::Tag> tags);

}  // namespace dtensor
