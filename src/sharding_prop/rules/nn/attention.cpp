// Scaled dot product attention, in each variant that LibTorch selects. Batch and heads may be sharded; query heads are
// groups (g) over the heads of keys and values (h). Queries may be sharded unless a causal mask makes them depend on
// their position. Keys and features are unsharded. Split sequences use src/attention and reach these rules only if it
// does not support the call.
#include <ATen/ExpandUtils.h>

#include "sharding_prop/rules/rules.h"
#include "sharding_prop/rules/shared_parts.h"

namespace dtensor {
namespace {

void refuse_dropout(const OpArgs& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.number("dropout_p") == 0,
                              "dropout inside a fused attention kernel draws other numbers on each rank; use the math "
                              "backend (at::globalContext().setSDPUse...) or apply dropout outside");
}

// `name` is ATen's name without `_scaled_dot_product_`. The kernels divide by the sizes of batch, heads and queries, so
// these are nonempty.
Rule& add(RuleBook& book, const std::string& name, Rule rule, Rule::Outputs outputs) {
  rule.nonempty("bhgl");
  const auto for_call = [rule](const OpArgs& op) {
    refuse_dropout(op);
    return op.boolean("is_causal") ? Rule(rule).unsharded("l") : rule;
  };
  return book.rule("aten::_scaled_dot_product_" + name, for_call, rule.str() + ", l! if is_causal")
      .saved_for_backward()
      .not_random()
      .reads_scalars()
      .outputs(std::move(outputs));
}

void add_backward(RuleBook& book, const std::string& forward, const char* text, Rule::Outputs outputs) {
  add(book, forward + "_backward", Rule(text).linear({0}), std::move(outputs)).takes_saved_results();
}

// Metadata of a [B, H, L, E] result with strides in memory order (`order`: dimensions, major first).
OutputMeta permuted(at::IntArrayRef sizes, const std::vector<int>& order, c10::ScalarType dtype) {
  OutputMeta meta = dense_meta(sizes, dtype);
  std::int64_t stride = 1;
  for (auto it = std::rbegin(order); it != std::rend(order); ++it) {
    meta.strides[static_cast<std::size_t>(*it)] = stride;
    stride *= std::max<std::int64_t>(sizes[static_cast<std::size_t>(*it)], 1);
  }
  return meta;
}

at::DimVector attention_sizes(const OpArgs& op, int query, int value) {
  return joined(op.sizes(query).require(4).drop_back(1), op.sizes(value).back());
}

at::DimVector without_last(at::DimVector sizes) { return sizes.pop_back(), sizes; }

// [B, H, L, E] in memory order [B, L, H, E].
OutputMeta by_token(at::IntArrayRef sizes, c10::ScalarType dtype) { return permuted(sizes, {0, 2, 1, 3}, dtype); }

// Order of dimensions as in at::empty_like(query), whose dimensions may be broadcast or of size 1.
OutputMeta like_query(const OpArgs& op, const at::DimVector& sizes) {
  OutputMeta meta = dense_meta(sizes, op.dtype(0));
  const auto strides = at::infer_dense_strides(sizes, op.strides(0));
  meta.strides.assign(strides.begin(), strides.end());
  return meta;
}

c10::ScalarType accumulate(c10::ScalarType type) {
  const bool half = type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
  return half ? c10::ScalarType::Float : type;
}

std::vector<OutputMeta> cpu_outputs(const OpArgs& op) {
  const at::DimVector sizes = attention_sizes(op, 0, 2);
  return {like_query(op, sizes), permuted(without_last(sizes), {0, 2, 1}, accumulate(op.dtype(0)))};
}

// Operands: grad_out, query, key, value, ... Results: gradients of the latter three.
std::vector<OutputMeta> gradients_by_token(const OpArgs& op) {
  std::vector<OutputMeta> outputs;
  for (const int i : {1, 2, 3}) outputs.push_back(by_token(op.sizes(i).require(4), op.dtype(i)));
  return outputs;
}

// Checked here, since the kernel reads other operands with the query's sizes.
std::vector<OutputMeta> cpu_gradients(const OpArgs& op) {
  const at::DimVector sizes = attention_sizes(op, 1, 3), rows = without_last(sizes);
  for (const int i : {0, 4}) {
    TORCH_CHECK(op.sizes(i).equals(sizes), "the gradient of attention: `", i == 0 ? "grad_out" : "out", "` of sizes ",
                op.sizes(i), ", expected ", at::IntArrayRef(sizes));
  }
  TORCH_CHECK(op.sizes(5).equals(rows), "the gradient of attention: `logsumexp` of sizes ", op.sizes(5), ", expected ",
              at::IntArrayRef(rows));
  return gradients_by_token(op);
}

std::vector<OutputMeta> flash_outputs(const OpArgs& op) {
  const at::DimVector sizes = attention_sizes(op, 0, 2);
  std::vector<OutputMeta> outputs{like_query(op, sizes), dense_meta(without_last(sizes), c10::ScalarType::Float)};
  for (int i = 0; i < 4; ++i) outputs.push_back(undefined_meta());  // cum_seq_q, cum_seq_k, max_q, max_k
  for (int i = 0; i < 3; ++i) outputs.push_back(unknown_meta());    // rng_state, unused, debug mask
  return outputs;
}

std::vector<OutputMeta> cudnn_outputs(const OpArgs& op) {
  const at::DimVector sizes = attention_sizes(op, 0, 2);
  at::DimVector rows = sizes;
  rows.back() = 1;
  std::vector<OutputMeta> outputs{like_query(op, sizes), dense_meta(rows, c10::ScalarType::Float)};
  for (int i = 0; i < 4; ++i) outputs.push_back(undefined_meta());
  for (int i = 0; i < 2; ++i) outputs.push_back(unknown_meta());
  outputs.push_back(undefined_meta());
  return outputs;
}

// The kernel pads the log-sum-exp of the queries to a multiple of 32.
std::vector<OutputMeta> efficient_outputs(const OpArgs& op) {
  const at::DimVector sizes = attention_sizes(op, 0, 2);
  const std::int64_t padded = op.boolean("compute_log_sumexp") ? (sizes[2] + 31) / 32 * 32 : 0;
  return {by_token(sizes, op.dtype(0)), dense_meta({sizes[0], sizes[1], padded}, c10::ScalarType::Float),
          unknown_meta(), unknown_meta()};
}

std::vector<OutputMeta> efficient_gradients(const OpArgs& op) {
  std::vector<OutputMeta> outputs = gradients_by_token(op);
  outputs.push_back(op.defined(4) && op.arg("grad_input_mask").toBoolList()[3] ? unknown_meta() : undefined_meta());
  return outputs;
}

}  // namespace

// Operands of backward operators: grad_out, query, key, value, out, logsumexp, and then
// - CPU: attn_mask
// - flash: cum_seq_q, cum_seq_k, philox_seed, philox_offset
// - cuDNN: philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k
// In the efficient variant attn_bias is before out, and philox_seed and philox_offset are last.
void add_attention_rules(RuleBook& book) {
  add(book, "flash_attention_for_cpu", "b(hg)le!, bhs!e, bhs!f!, b(hg)ls -> b(hg)lf, b(hg)l", cpu_outputs);
  add_backward(book, "flash_attention_for_cpu",
               "b(hg)lf!, b(hg)le!, bhs!e, bhsf, b(hg)lf, b(hg)l, b(hg)ls -> b(hg)le, bhse, bhsf", cpu_gradients);
  add(book, "flash_attention", "b(hg)le!, bhs!e, bhs!f! -> b(hg)lf, b(hg)l, ~*", flash_outputs);
  add_backward(book, "flash_attention",
               "b(hg)lf!, b(hg)le!, bhs!e, bhsf, b(hg)lf, b(hg)l, ~, ~, ~, ~ -> b(hg)le, bhse, bhsf",
               gradients_by_token);
  add(book, "cudnn_attention", "b(hg)l!e!, bhs!e, bhs!f!, b(hg)ls -> b(hg)lf, b(hg)l_, ~*", cudnn_outputs);
  add_backward(book, "cudnn_attention",
               "b(hg)l!f!, b(hg)le!, bhs!e, bhsf, b(hg)lf, b(hg)l_, ~, ~, b(hg)ls, ~, ~ -> b(hg)le, bhse, bhsf",
               gradients_by_token);
  add(book, "efficient_attention", "b(hg)l!e!, bhs!e, bhs!f!, b(hg)ls -> b(hg)lf, b(hg)_, ~, ~", efficient_outputs);
  add_backward(book, "efficient_attention",
               "b(hg)l!f!, b(hg)le!, bhs!e, bhsf, ~, b(hg)lf, b(hg)_, ~, ~ -> b(hg)le, bhse, bhsf, ~",
               efficient_gradients);
}

}  // namespace dtensor
