// Causal attention: ATen's kernels where they know the case, products and a softmax where scores are capped.
#include "decoder/attend.h"

#include <ATen/ATen.h>

#include <limits>

#include "dtensor/attention.h"
#include "dtensor/tensor.h"

namespace dtensor::nn {
namespace {

// [L, S]: whether a query sees a key.
at::Tensor mask_of(const at::Tensor& q, const at::Tensor& k, std::int64_t window) {
  const auto options = at::TensorOptions(at::kLong).device(q.device());
  const std::int64_t queries = q.size(2), keys = k.size(2);
  const at::Tensor behind = at::arange(keys - queries, keys, options).unsqueeze(1) - at::arange(keys, options);
  return window > 0 ? at::logical_and(behind >= 0, behind < window) : behind >= 0;
}

// Heads of a group stand beside each other as rows of one matrix, so that its keys are read once.
at::Tensor grouped(const at::Tensor& q, std::int64_t groups) {
  return q.unflatten(1, {groups, q.size(1) / groups}).flatten(2, 3);
}
at::Tensor ungrouped(const at::Tensor& y, std::int64_t queries) {
  return y.unflatten(2, {y.size(2) / queries, queries}).flatten(1, 2);
}

at::Tensor capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttendOptions& o) {
  const std::int64_t groups = k.size(1), queries = q.size(2);
  at::Tensor scores = at::matmul(grouped(q, groups), k.transpose(2, 3)) * (o.scale / o.softcap);
  scores = at::tanh(scores) * o.softcap;
  if (queries > 1) {
    const double never = -std::numeric_limits<double>::infinity();
    const at::Tensor unseen = mask_of(q, k, o.window).logical_not();
    scores = scores.unflatten(2, {q.size(1) / groups, queries}).masked_fill(unseen, never).flatten(2, 3);
  }
  const auto wide = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return ungrouped(at::matmul(at::softmax(scores, -1, wide).to(q.scalar_type()), v), queries);
}

at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
                bool causal, double scale) {
  return at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale, q.size(1) != k.size(1));
}

}  // namespace

at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttendOptions& o) {
  const std::int64_t queries = q.size(2);
  if (queries == 1 && o.window > 0 && k.size(2) > o.window) {  // the last token sees the last of the keys
    k = k.narrow(2, k.size(2) - o.window, o.window);
    v = v.narrow(2, v.size(2) - o.window, o.window);
  }
  if (o.softcap > 0) return capped(q, k, v, o);
  if (queries == 1) return ungrouped(sdpa(grouped(q, k.size(1)), k, v, std::nullopt, false, o.scale), 1);
  const bool first = k.size(2) == queries, windowed = o.window > 0 && k.size(2) > o.window;
  if (first && !windowed) return sdpa(q, k, v, std::nullopt, /*causal=*/true, o.scale);
  if (first && is_dtensor(q)) {
    AttentionOptions options;
    options.causal = true, options.scale = o.scale, options.window = o.window;
    return attention(q, k, v, options);
  }
  return sdpa(q, k, v, mask_of(q, k, o.window), false, o.scale);
}

}  // namespace dtensor::nn
