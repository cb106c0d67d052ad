// Which rule an operator follows, and how its schema aliases: decided once per operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sharding_prop/op_call.h"
#include "sharding_prop/rule_data.h"

namespace dtensor {

enum class RuleSource : std::uint8_t { rule, replicate, refuse, none };

// What the book holds under a name.
struct RuleEntry {
  RuleSource source = RuleSource::none;
  Rule constant;  // or, where function is set, the properties that count for each rule it returns
  RuleFunction function;
  std::string why;
};
using RuleEntryPtr = std::shared_ptr<const RuleEntry>;

struct ReturnAlias {
  bool is_tensor = false;
  bool is_list = false;
  int arg = -1;        // schema argument that it aliases, -1: fresh
  bool write = false;  // the argument itself (in-place, out=), not a view
};

struct OpInfo {
  RuleEntryPtr entry;
  std::string derived_from;  // name of the base operator, or empty
  std::vector<ReturnAlias> returns;
  std::vector<int> written_args;  // in-place, out=, mutated lists
  std::vector<int> out_args;      // written and not read
  bool inplace = false;           // writes an operand that it reads
  bool inplace_view = false;      // changes the metadata of its operand
  bool is_list = false;           // _foreach_*, _fused_*: one sub-call per list position
  bool random = false;            // tagged nondeterministic_seeded
  bool dynamic_shape = false;     // tagged dynamic_output_shape
  bool returns_tensor = false;
  mutable std::atomic<bool> lacks_meta = false;  // found out by the first call

  bool writes(int arg) const;
  bool is_out(int arg) const;
};
using OpInfoPtr = std::shared_ptr<const OpInfo>;

OpInfoPtr resolve(const c10::OperatorHandle& op);

// The rule for this call; outputs must be inferred unless the rule's function does not look at them.
Rule rule_for(const OpInfo& info, const OpCall& call);

// Drops the memo of resolve(), because the book changed.
void forget_resolved();

// The book's entries (dtensor/rule.h adds to it).
RuleEntryPtr find_entry(const std::string& name);
RuleEntryPtr find_tag_entry(c10::ArrayRef<at::Tag> tags);

}  // namespace dtensor
