// Gathers the full operands, and computes the result of one device on every rank.
#include "ops/local_kernels/special/attention_check.h"

#include "attention/dtensor_attention.h"
#include "attention/local_operands.h"
#include "autograd/materialized_view.h"
#include "ops/checks/result_check.h"

namespace dtensor {

AttentionCheck::AttentionCheck(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionOptions& options, bool picked) {
  const LocalBelowAutogradGuard scope;
  const auto replicas = [](const char* name, const at::Tensor& t) {
    if (t.defined()) check_replicas(c10::str("attention: operand `", name, "`"), t);
  };
  replicas("q", q), replicas("k", k), replicas("v", v);
  replicas("mask", options.mask), replicas("sinks", options.sinks), replicas("row_cu_seqlens", options.row_cu_seqlens);
  if (!picked || options.dropout > 0) return;
  AttentionOptions full = options;
  for (auto* t : {&full.mask, &full.sinks, &full.row_cu_seqlens}) *t = t->defined() ? full_value(*t) : *t;
  expected_ = attention_impl::reference_attention(full_value(q), full_value(k), full_value(v), full);
}

void AttentionCheck::compare(const at::Tensor& out) const {
  const LocalBelowAutogradGuard scope;
  check_replicas("attention: the result", out);
  if (expected_.defined()) check_parts("attention: the result", out, expected_, "a strategy of attention is wrong");
}

}  // namespace dtensor
