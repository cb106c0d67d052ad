// Attention with ATen operators: the reference for dtensor::attention().
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/dtensor_attention.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor::attention_impl {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

// [B, 1, L, S]: whether a query and a key are in the same document of their row.
at::Tensor in_one_document(const at::Tensor& starts, std::int64_t length) {
  const auto positions = at::arange(length, at::TensorOptions(at::kLong).device(starts.device()));
  const auto numbers = at::searchsorted(starts.contiguous(), positions.expand({starts.size(0), length}).contiguous(),
                                        /*out_int32=*/false, /*right=*/true);
  return numbers.unsqueeze(2).eq(numbers.unsqueeze(1)).unsqueeze(1);
}

// [L, S]; undefined if all keys are visible.
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
  if (o.row_cu_seqlens.defined()) {
    scores = scores.masked_fill(in_one_document(o.row_cu_seqlens, scores.size(2)).logical_not(), kUnseen);
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

// Everything that hides keys as one mask; undefined if all are visible.
at::Tensor mask_of(const AttentionOptions& o, std::int64_t queries, std::int64_t keys, at::Device device) {
  at::Tensor seen = seen_by_position(o, queries, keys, device);
  if (o.row_cu_seqlens.defined()) {
    const auto documents = in_one_document(o.row_cu_seqlens, queries);
    seen = seen.defined() ? documents.logical_and(seen) : documents;
  }
  if (!o.mask.defined() || !seen.defined()) return o.mask.defined() ? o.mask : seen;
  return o.mask.scalar_type() == at::kBool ? o.mask.logical_and(seen) : o.mask.masked_fill(seen.logical_not(), kUnseen);
}

bool is_regular(const at::Tensor& t) { return !t.defined() || dtensor_or_null(t) == nullptr; }

// Whether to compute documents separately. Not for DTensors, because slices of a sharded sequence need communication.
// Not with dropout, because each document would draw its own mask.
bool goes_by_documents(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                       const at::Tensor& kept) {
  const bool regular = is_regular(q) && is_regular(k) && is_regular(v) && is_regular(o.mask) && is_regular(o.sinks);
  const bool several = o.documents.size() > 1 || (o.row_cu_seqlens.defined() && q.size(0) > 0 && k.size(2) > 0);
  return several && regular && is_regular(o.row_cu_seqlens) && !kept.defined() && o.dropout == 0;
}

// Narrows a mask that broadcasts to [B, H, L, S].
at::Tensor cut(const at::Tensor& mask, std::int64_t dim, std::int64_t begin, std::int64_t length) {
  const auto own = mask.defined() ? mask.dim() + dim - 4 : -1;
  return own < 0 || mask.size(own) == 1 ? mask : mask.narrow(own, begin, length);
}

at::Tensor document_by_document(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionOptions& o) {
  std::vector<at::Tensor> parts;
  auto options = o;
  options.documents.clear();
  for (std::size_t d = 0; d < o.documents.size(); ++d) {
    const auto begin = o.documents[d], end = d + 1 < o.documents.size() ? o.documents[d + 1] : q.size(2);
    const auto of = [&](const at::Tensor& t) { return t.narrow(2, begin, end - begin); };
    options.mask = cut(cut(o.mask, 2, begin, end - begin), 3, begin, end - begin);
    parts.push_back(reference_attention(of(q), of(k), of(v), options));
  }
  return at::cat(parts, 2);
}

at::Tensor row_by_row(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const auto starts = o.row_cu_seqlens.cpu().contiguous();
  std::vector<at::Tensor> rows;
  auto options = o;
  options.row_cu_seqlens = at::Tensor();
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    options.documents = documents_of_row(starts[b], q.size(2));
    options.mask = cut(o.mask, 0, b, 1);
    rows.push_back(reference_attention(q.narrow(0, b, 1), k.narrow(0, b, 1), v.narrow(0, b, 1), options));
  }
  return at::cat(rows, 0);
}

}  // namespace

std::vector<std::int64_t> documents_of_row(const at::Tensor& row, std::int64_t length) {
  const at::IntArrayRef all(row.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(row.numel()));
  TORCH_CHECK(all.front() == 0 && std::is_sorted(all.begin(), all.end()) && all.back() <= length,
              "attention: expected ascending document positions of a row from 0 to ", length, ", got ", all);
  return {all.begin(), std::lower_bound(all.begin(), all.end(), length)};
}

at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                               const at::Tensor& kept) {
  if (goes_by_documents(q, k, v, o, kept)) {
    return o.row_cu_seqlens.defined() ? row_by_row(q, k, v, o) : document_by_document(q, k, v, o);
  }
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

at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const bool learned = o.mask.defined() && o.mask.requires_grad() && at::GradMode::is_enabled();
  if (o.sinks.defined() || o.dropout > 0 || learned || q.numel() == 0) return reference_attention(q, k, v, o);
  const bool hides = o.mask.defined() || o.window > 0 || !o.documents.empty() || o.row_cu_seqlens.defined();
  const auto mask = hides ? std::optional(mask_of(o, q.size(2), k.size(2), q.device())) : std::nullopt;
  return at::scaled_dot_product_attention(q, k, v, mask, 0.0, o.causal && !hides, o.scale, q.size(1) != k.size(1));
}

}  // namespace dtensor::attention_impl
