// New tensors with the shape of an operand: they have its shards but do not use its values.
#include "sharding_prop/rules/rules.h"

namespace dtensor {
namespace {

Rule like() { return Rule("... -> ...").values_unused(0).reads_storage_shards(); }

// new_*: a result of another rank is unrelated to the operand. Dimensions of other sizes are unsharded.
Rule new_sized(const OpArgs& op) {
  if (op.sizes(0).size() != op.result(0).sizes.size()) return Rule("~ -> ~").ignored(0);
  return Rule("X -> X").values_unused(0).reads_storage_shards().local_size("size");
}

Rule new_strided(const OpArgs& op) { return new_sized(op).local_strides("stride"); }

}  // namespace

void add_like_factories_rules(RuleBook& book) {
  constexpr const char* kAbout = "X -> X where the rank is the operand's";
  for (const char* op : {"aten::zeros_like", "aten::ones_like", "aten::full_like"}) book.rule(op, like());
  for (const char* op : {"aten::new_zeros", "aten::new_ones", "aten::new_full"}) book.rule(op, new_sized, kAbout);
  book.rule("aten::empty_like", like()).uninitialized_results();
  book.rule("aten::new_empty", new_sized, kAbout).uninitialized_results();
  book.rule("aten::new_empty_strided", new_strided, kAbout).uninitialized_results();
}

}  // namespace dtensor
