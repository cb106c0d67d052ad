// Random fills: a local kernel draws each value by its global index, so any shard of the result may be drawn alone.
#include "sharding_prop/rules/rules.h"

namespace dtensor {

void add_random_rules(RuleBook& book) {
  for (const char* op :
       {"aten::uniform_", "aten::normal_", "aten::random_", "aten::exponential_", "aten::cauchy_", "aten::log_normal_",
        "aten::geometric_", "aten::bernoulli_", "aten::bernoulli", "aten::normal.Tensor_float",
        "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", "aten::uniform", "aten::normal_functional",
        "aten::random", "aten::exponential", "aten::cauchy", "aten::log_normal", "aten::geometric"}) {
    book.rule(op, Rule("...* -> ...*").kernel("random_fill"));
  }
  for (const char* op : {"aten::rand_like", "aten::randn_like", "aten::randint_like"}) {
    book.rule(op, Rule("...* -> ...*").unread(0).sees_storage().kernel("random_fill"));
  }
  book.rule("aten::native_dropout", Rule("... -> ..., ...").kernel("dropout_global"));
}

}  // namespace dtensor
