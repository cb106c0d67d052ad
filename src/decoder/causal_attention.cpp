// Causal attention: ATen's kernels if they support the case, matrix products and a softmax with softcap.
#include "decoder/causal_attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "dtensor/attention.h"
#include "dtensor/bit_identical.h"
#include "dtensor/tensor.h"

namespace dtensor::nn {
namespace {

// [L, S]: whether a query attends to a key.
at::Tensor mask_of(const at::Tensor& q, const at::Tensor& k, std::int64_t window) {
  const auto options = at::TensorOptions(at::kLong).device(q.device());
  const std::int64_t queries = q.size(2), keys = k.size(2);
  const at::Tensor behind = at::arange(keys - queries, keys, options).unsqueeze(1) - at::arange(keys, options);
  return window > 0 ? at::logical_and(behind >= 0, behind < window) : behind >= 0;
}

// Stacks the heads of a group as rows of one matrix, so that its keys are read once.
at::Tensor grouped(const at::Tensor& q, std::int64_t groups) {
  return q.unflatten(1, {groups, q.size(1) / groups}).flatten(2, 3);
}
// The inverse. share: heads of a group. There may be no query.
at::Tensor ungrouped(const at::Tensor& y, std::int64_t share, std::int64_t queries) {
  return y.unflatten(2, {share, queries}).flatten(1, 2);
}

// In a BitIdentical scope keys are padded to tiles: the softmax of a row depends on the tokens after it only by the
// length of its last vector.
at::Tensor capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttendOptions& o) {
  constexpr std::int64_t kTile = 64;
  const std::int64_t groups = k.size(1), share = q.size(1) / groups, queries = q.size(2);
  const bool same_bits = BitIdentical::current();
  const std::int64_t missing = same_bits ? (kTile - k.size(2) % kTile) % kTile : 0;
  const auto padded = [&](const at::Tensor& t) { return missing > 0 ? at::constant_pad_nd(t, {0, 0, 0, missing}) : t; };
  at::Tensor scores = at::matmul(grouped(q, groups), padded(k).transpose(2, 3)) * (o.scale / o.softcap);
  scores = at::tanh(scores) * o.softcap;
  if (queries > 1 || same_bits) {
    const double never = -std::numeric_limits<double>::infinity();
    const at::Tensor unseen = at::constant_pad_nd(mask_of(q, k, o.window).logical_not(), {0, missing}, true);
    scores = scores.unflatten(2, {share, queries}).masked_fill(unseen, never).flatten(2, 3);
  }
  const auto wide = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return ungrouped(at::matmul(at::softmax(scores, -1, wide).to(q.scalar_type()), padded(v)), share, queries);
}

// [L, own]: whether a query attends to a local key; undefined if each query attends to all.
at::Tensor shared_mask(std::int64_t first, std::int64_t queries, const at::Tensor& k,
                       const Communicator& sequence_group, std::int64_t window) {
  if (queries == 1 && window == 0) return {};
  const auto options = at::TensorOptions(at::kLong).device(k.device());
  const at::Tensor positions = at::arange(k.size(2), options) * sequence_group.size() + sequence_group.rank();
  const at::Tensor behind = at::arange(first, first + queries, options).unsqueeze(1) - positions;
  return window > 0 ? at::logical_and(behind >= 0, behind < window) : behind >= 0;
}

// Partial attention on local keys, concatenated to rows [B, G, H / G * L, F + 2]: weighted values, the sum of weights,
// the largest score. Without keys: zeros, zero, minus infinity.
at::Tensor local_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                           const AttendOptions& o) {
  const std::int64_t groups = k.size(1), queries = q.size(2);
  const double never = -std::numeric_limits<double>::infinity();
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows = grouped(q, groups);
  if (k.size(2) == 0) {
    const at::Tensor none = at::zeros({q.size(0), groups, rows.size(2), v.size(3) + 2}, q.options().dtype(wide));
    none.select(3, v.size(3) + 1).fill_(never);
    return none;
  }
  at::Tensor scores = at::matmul(rows, k.transpose(2, 3)).to(wide) * o.scale;
  if (o.softcap > 0) scores = at::tanh(scores / o.softcap) * o.softcap;
  if (mask.defined()) {
    scores = scores.unflatten(2, {q.size(1) / groups, queries}).masked_fill(mask.logical_not(), never).flatten(2, 3);
  }
  const at::Tensor largest = scores.amax(-1, /*keepdim=*/true);
  // If a query attends to no local key, the weights are exp(-inf - 0) = 0.
  const at::Tensor weights = (scores - largest.masked_fill(largest == never, 0)).exp();
  const at::Tensor values = at::matmul(weights.to(v.scalar_type()), v).to(wide);
  return at::cat({values, weights.sum(-1, /*keepdim=*/true), largest}, 3);
}

at::Tensor with_features(const at::Tensor& t, std::int64_t size) {
  return t.size(3) < size ? at::constant_pad_nd(t, {0, size - t.size(3)}) : t;
}

// Flash kernels expect values of the size of the queries, which latent attention has not; ATen would store all scores.
// So the values are padded with zeros, except for a single query, whose scores are fewer than the values of a cache. In
// a BitIdentical scope only the flash kernel has rows that do not depend on the number of keys.
at::Tensor sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
                bool causal, double scale) {
  const bool same_bits = BitIdentical::current();
  const std::int64_t size = same_bits ? std::max(q.size(3), v.size(3)) : 0,
                     of_values = q.size(2) > 1 ? q.size(3) : size;
  const at::Tensor y = at::scaled_dot_product_attention(with_features(q, size), with_features(k, size),
                                                        with_features(v, std::max(size, of_values)), mask, 0.0, causal,
                                                        scale, q.size(1) != k.size(1));
  return y.size(3) > v.size(3) ? y.narrow(3, 0, v.size(3)) : y;
}

}  // namespace

at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttendOptions& o) {
  const std::int64_t queries = q.size(2), groups = k.size(1);
  const bool windowed = o.window > 0 && k.size(2) > o.window, first = k.size(2) == queries;
  // In a BitIdentical scope tiles of keys begin at the first token, so hidden keys stay.
  const bool keeps_hidden = windowed && BitIdentical::current();
  if (o.documents.defined()) {
    return attention(q, k, v, {.causal = true, .scale = o.scale, .window = o.window, .row_cu_seqlens = o.documents});
  }
  if (queries == 1 && windowed && !keeps_hidden) {  // the last token attends to the last keys only
    k = k.narrow(2, k.size(2) - o.window, o.window);
    v = v.narrow(2, v.size(2) - o.window, o.window);
  }
  if (o.softcap > 0) return capped(q, k, v, o);
  if (queries == 1 && !keeps_hidden) {
    return ungrouped(sdpa(grouped(q, groups), k, v, std::nullopt, false, o.scale), q.size(1) / groups, queries);
  }
  if (first && !windowed) return sdpa(q, k, v, std::nullopt, /*causal=*/true, o.scale);
  if (first && is_dtensor(q)) {
    AttentionOptions options;
    options.causal = true, options.scale = o.scale, options.window = o.window;
    return attention(q, k, v, options);
  }
  return sdpa(q, k, v, mask_of(q, k, o.window), false, o.scale);
}

at::Tensor attend_split_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t first,
                              const Communicator& sequence_group, const AttendOptions& o) {
  const std::int64_t queries = q.size(2), size = v.size(3);
  const at::Tensor mine =
      local_attention(q, k, v, shared_mask(first, queries, k, sequence_group, o.window), o).contiguous();
  const at::Tensor all =
      mine.new_empty({sequence_group.size(), mine.size(0), mine.size(1), mine.size(2), mine.size(3)});
  sequence_group.all_gather(all.unbind(0), mine).wait();
  const at::Tensor largest = all.narrow(4, size + 1, 1);
  const at::Tensor scaled = all.narrow(4, 0, size + 1) * (largest - largest.amax(0)).exp();
  const at::Tensor sum = scaled.sum(0);
  const at::Tensor y = sum.narrow(3, 0, size) / sum.narrow(3, size, 1);
  return ungrouped(y.to(q.scalar_type()), q.size(1) / k.size(1), queries);
}

}  // namespace dtensor::nn
