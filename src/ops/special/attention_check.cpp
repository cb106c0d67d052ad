// The whole operands are gathered, and what one device gives is computed on every rank.
#include "ops/special/attention_check.h"

#include "attention/attend.h"
#include "attention/setup.h"
#include "autograd/moved_view.h"
#include "ops/result_check.h"

namespace dtensor {

AttentionCheck::AttentionCheck(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionOptions& options, bool picked) {
  const LocalScope scope;
  const auto replicas = [](const char* name, const at::Tensor& t) {
    if (t.defined()) check_replicas(c10::str("attention: operand `", name, "`"), t);
  };
  replicas("q", q), replicas("k", k), replicas("v", v);
  replicas("mask", options.mask), replicas("sinks", options.sinks), replicas("row_documents", options.row_documents);
  if (!picked || options.dropout > 0) return;
  AttentionOptions whole = options;
  for (auto* t : {&whole.mask, &whole.sinks, &whole.row_documents}) *t = t->defined() ? whole_value(*t) : *t;
  expected_ = attention_parts::plain_attention(whole_value(q), whole_value(k), whole_value(v), whole);
}

void AttentionCheck::compare(const at::Tensor& out) const {
  const LocalScope scope;
  check_replicas("attention: the result", out);
  if (expected_.defined()) check_parts("attention: the result", out, expected_, "a strategy of attention is wrong");
}

}  // namespace dtensor
