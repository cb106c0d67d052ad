// Attention in plain ATen: what dtensor::attention() means.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "attention/attend.h"

namespace dtensor::attention_parts {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

// [B, 1, L, S]: whether a query and a key are in one of their row's documents.
at::Tensor in_one_document(const at::Tensor& starts, std::int64_t length) {
  const auto positions = at::arange(length, at::TensorOptions(at::kLong).device(starts.device()));
  const auto numbers = at::searchsorted(starts.contiguous(), positions.expand({starts.size(0), length}).contiguous(),
                                        /*out_int32=*/false, /*right=*/true);
  return numbers.unsqueeze(2).eq(numbers.unsqueeze(1)).unsqueeze(1);
}

// [L, S]; undefined where all is seen.
at::Tensor seen_by_position(const AttentionOptions& o, std::int64_t queries, std::int64_t keys, at::Device device) {
  if (!o.causal && o.window == 0 && o.documents.empty()) return {};
  const auto options = at::TensorOptions(at::kLong).device(device);
  const auto i = at::arange(queries, options).unsqueeze(1), j = at::arange(keys, options).unsqueeze(0);
  auto seen = at::ones({queries, keys}, options.dtype(at::kBool));
  if (o.causal) seen = seen.logical_and(j.le(i));
  if (o.window > 0) seen = seen.logical_and((i - j).abs().lt(o.window));
  if (o.documents.empty()) return seen;
  const auto starts = at::tensor(o.documents, options);
  return seen.logical_and(at::bucketize(i, starts, false, true).eq(at::bucketize(j, starts, false, true)));
}

at::Tensor with_masks(at::Tensor scores, const AttentionOptions& o) {
  const auto seen = seen_by_position(o, scores.size(2), scores.size(3), scores.device());
  if (seen.defined()) scores = scores.masked_fill(seen.logical_not(), kUnseen);
  if (o.row_documents.defined()) {
    scores = scores.masked_fill(in_one_document(o.row_documents, scores.size(2)).logical_not(), kUnseen);
  }
  if (!o.mask.defined()) return scores;
  return o.mask.scalar_type() == at::kBool ? scores.masked_fill(o.mask.logical_not(), kUnseen) : scores + o.mask;
}

at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& sinks) {
  if (!sinks.defined()) return at::_safe_softmax(scores, -1);
  const auto column = sinks.to(scores.scalar_type()).view({1, -1, 1, 1});
  const auto wide = at::cat({scores, column.expand({scores.size(0), scores.size(1), scores.size(2), 1})}, 3);
  return at::_safe_softmax(wide, -1).narrow(3, 0, scores.size(3));
}

}  // namespace

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                           const at::Tensor& kept) {
  const auto groups = k.size(1) == 0 ? 1 : q.size(1) / k.size(1);
  const auto keys = groups == 1 ? k : k.repeat_interleave(groups, 1);
  const auto values = groups == 1 ? v : v.repeat_interleave(groups, 1);
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const auto scores = with_masks(at::matmul(q * scale, keys.transpose(2, 3)), o);
  auto weights = weights_of(scores, o.sinks);
  if (kept.defined()) {
    weights = weights * kept * (o.dropout == 1 ? 0 : 1 / (1 - o.dropout));
  } else if (o.dropout > 0) {
    weights = at::dropout(weights, o.dropout, true);
  }
  return at::matmul(weights.to(values.scalar_type()), values);
}

}  // namespace dtensor::attention_parts
