// Checks the operands and options of attention.
#include "attention/dtensor_attention.h"

namespace dtensor::attention_impl {
namespace {

void check_row_cu_seqlens(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& o) {
  const auto& rows = o.row_cu_seqlens;
  if (!rows.defined()) return;
  TORCH_CHECK(rows.dim() == 2 && rows.scalar_type() == at::kLong && rows.size(0) == q.size(0) && rows.size(1) > 0,
              "attention: expected row_cu_seqlens int64 [", q.size(0), ", D], got ", rows.scalar_type(), rows.sizes());
  TORCH_CHECK(q.size(2) == k.size(2) && o.documents.empty(),
              "attention: row_cu_seqlens requires equal numbers of queries and ", "keys and no documents, got ",
              q.size(2), " queries, ", k.size(2), " keys and documents of size ", o.documents.size());
}

}  // namespace

void check_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const auto sizes = [&] { return c10::str("q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes()); };
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "attention: expected four dimensions of q, k and v, got ",
              sizes());
  TORCH_CHECK(q.size(0) == k.size(0) && k.size(0) == v.size(0) && k.size(1) == v.size(1) && k.size(2) == v.size(2) &&
                  q.size(3) == k.size(3),
              "attention: expected q [B, H, L, E], k [B, G, S, E] and v [B, G, S, F], got ", sizes());
  TORCH_CHECK(k.size(1) == 0 ? q.size(1) == 0 : q.size(1) % k.size(1) == 0,
              "attention: expected query heads to be a multiple of key heads, got ", sizes());
  TORCH_CHECK(q.is_floating_point() && q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type(),
              "attention: expected one floating dtype for q, k and v, got ", q.scalar_type(), ", ", k.scalar_type(),
              ", ", v.scalar_type());
  TORCH_CHECK(o.dropout >= 0 && o.dropout <= 1, "attention: dropout ", o.dropout, " is not in [0, 1]");
  TORCH_CHECK(o.window >= 0, "attention: window ", o.window, " is negative; expected window >= 0");
  TORCH_CHECK(
      o.documents.empty() || (o.documents.front() == 0 && std::is_sorted(o.documents.begin(), o.documents.end())),
      "attention: expected ascending document positions from 0, got ", at::IntArrayRef(o.documents));
  TORCH_CHECK(o.documents.empty() || q.size(2) == k.size(2),
              "attention: documents requires equal numbers of queries and keys, got ", sizes());
  TORCH_CHECK(o.documents.empty() || o.documents.back() <= q.size(2),
              "attention: expected document positions of at most ", q.size(2), ", got ", at::IntArrayRef(o.documents));
  check_row_cu_seqlens(q, k, o);
  TORCH_CHECK(!o.sinks.defined() || (o.sinks.dim() == 1 && o.sinks.size(0) == q.size(1)),
              "attention: expected sinks with one number for each of ", q.size(1), " heads");
  if (!o.mask.defined()) return;
  TORCH_CHECK(o.mask.scalar_type() == at::kBool || o.mask.is_floating_point(),
              "attention: expected a bool or floating mask, got ", o.mask.scalar_type());
  const auto full = std::vector<std::int64_t>{q.size(0), q.size(1), q.size(2), k.size(2)};
  bool fits = o.mask.dim() <= 4;
  for (std::int64_t d = 1; fits && d <= o.mask.dim(); ++d) {
    fits = o.mask.size(-d) == 1 || o.mask.size(-d) == full[static_cast<std::size_t>(4 - d)];
  }
  TORCH_CHECK(fits, "attention: a mask of sizes ", o.mask.sizes(), " does not broadcast to ", at::IntArrayRef(full));
}

}  // namespace dtensor::attention_impl
