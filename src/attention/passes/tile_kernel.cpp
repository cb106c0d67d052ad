// Computes a tile with ATen's flash kernel, which returns the log-sum-exp. Uses matrix products and a softmax where the
// kernel does not apply: with dropout, or if values and keys differ in length.
#include "attention/passes/tile_kernel.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <limits>

#include "attention/dtensor_attention.h"
#include "internal/simulated.h"

namespace dtensor::attention_impl {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr double kFar = 1e3;  // above it, a float log-sum-exp has an error of more than 6e-5
constexpr std::int64_t kScoresAtOnce = std::int64_t{1} << 20;  // elements of a part of the score matrix

// CUDA's flash kernel takes no bias, and its causal mask is that of equal lengths.
bool by_flash(const Scores& scores, const Tile& tile, const Inputs& in) {
  if (scores.dropout > 0 || !has_flash_kernel(in.q, in.v) || in.q.size(3) != in.v.size(3)) return false;
  if (in.q.is_cpu()) return true;
  if (scores.mask.defined() || tile.mask_kind == TileMask::masked) return false;
  return tile.mask_kind != TileMask::causal || tile.q.length == tile.kv.length;
}

// [1, 1, l, s]
at::Tensor visible_positions(const Pattern& pattern, const Tile& tile, const at::Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const auto i = at::arange(tile.q.global, tile.q.global + tile.q.length, options).view({1, 1, -1, 1});
  const auto j = at::arange(tile.kv.global, tile.kv.global + tile.kv.length, options).view({1, 1, 1, -1});
  auto seen = pattern.causal ? j.le(i) : j.ge(0).expand({1, 1, tile.q.length, tile.kv.length});
  if (pattern.window > 0) seen = seen.logical_and((i - j).abs_().lt(pattern.window));
  return seen;  // a tile is in one document
}

at::Tensor mask_part(const Scores& scores, const Tile& tile) {
  at::Tensor part = scores.mask;
  if (!part.defined()) return part;
  if (part.size(2) > 1) part = part.narrow(2, scores.has_local_rows ? tile.q.local : tile.q.global, tile.q.length);
  if (part.size(3) > 1) part = part.narrow(3, tile.kv.global, tile.kv.length);
  return part;
}

// The bias added to the scores; undefined: none.
at::Tensor bias_of(const Scores& scores, const Tile& tile, const at::Tensor& q, bool causal_by_kernel) {
  at::Tensor part = mask_part(scores, tile), seen;
  const bool positions =
      tile.mask_kind == TileMask::masked || (tile.mask_kind == TileMask::causal && !causal_by_kernel);
  if (positions) seen = visible_positions(scores.pattern, tile, q);
  if (part.defined() && part.scalar_type() == at::kBool) {
    seen = seen.defined() ? seen.logical_and(part) : part;
    part = at::Tensor();
  }
  if (!seen.defined()) return part;
  const auto type = part.defined() ? part.scalar_type() : q.scalar_type();
  auto bias = at::zeros(seen.sizes(), q.options().dtype(type)).masked_fill_(seen.logical_not(), kNothing);
  return part.defined() ? part + bias : bias;
}

at::Tensor full_rows(const at::Tensor& bias, const Tile& tile) {
  auto sizes = bias.sizes().vec();
  sizes[2] = tile.q.length;
  sizes[3] = tile.kv.length;
  return bias.expand(sizes);
}

struct FlashBias {
  bool causal;
  std::optional<at::Tensor> bias;
};

FlashBias flash_bias(const Scores& scores, const Tile& tile, const at::Tensor& q) {
  const bool by_kernel = !scores.mask.defined();
  const auto bias = bias_of(scores, tile, q, by_kernel);
  if (!bias.defined()) return {tile.mask_kind == TileMask::causal, std::nullopt};
  const auto type = bias.scalar_type() == at::kFloat ? at::kFloat : q.scalar_type();
  return {false, full_rows(bias.to(type), tile).contiguous()};
}

TileResult math_forward(const Scores& scores, const Tile& tile, const Inputs& in, bool with_row_max);

// Whether the CPU kernel may have lost a NaN. It returns a log-sum-exp of 0 for rows whose maximum it takes for -inf:
// those without visible keys, but also those whose visible scores are NaN and lie in the last, incomplete vector of a
// tile, since its scalar maximum drops NaN. And its exponential in half types returns numbers for NaN, as of a score of
// +inf.
bool may_lose_nan(const at::Tensor& lse) {
  return item_or(lse.eq(0).logical_or_(lse.isfinite().logical_not_()).any(), false);
}

TileResult flash_forward(const Scores& scores, const Tile& tile, const Inputs& in) {
  if (!in.q.is_cpu()) {
    const bool causal = tile.mask_kind == TileMask::causal;
    const auto result = at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, 0.0, causal, false, scores.scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  const auto [causal, bias] = flash_bias(scores, tile, in.q);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(in.q, in.k, in.v, 0.0, causal, bias, scores.scale);
  if (bias) lse = lse.masked_fill(bias->eq(kNothing).all(-1), kNothing);
  if (may_lose_nan(lse.masked_fill(lse.eq(kNothing), 1))) {
    return math_forward(scores, tile, in, /*with_row_max=*/false);
  }
  return {out, lse};
}

// The forward kernel's other results are not used without dropout and packed sequences.
Inputs flash_backward_on_device(const Scores& scores, const Tile& tile, const Inputs& in, const RowState& rows) {
  const auto none = at::empty({0}, in.q.options().dtype(at::kLong));
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      rows.grad, in.q, in.k, in.v, rows.out, rows.lse.contiguous(), {}, {}, tile.q.length, tile.kv.length, 0.0,
      tile.mask_kind == TileMask::causal, none, none, scores.scale);
  return {dq, dk, dv};
}

Inputs flash_backward(const Scores& scores, const Tile& tile, const Inputs& in, const RowState& rows) {
  if (!in.q.is_cpu()) return flash_backward_on_device(scores, tile, in, rows);
  const auto [causal, bias] = flash_bias(scores, tile, in.q);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      rows.grad, in.q, in.k, in.v, rows.out, rows.lse, 0.0, causal, bias, scores.scale);
  return {dq, dk, dv};
}

// Merges query heads that share a key head into the rows: [b, h, l, e] to [b, g, h / g * l, e].
at::Tensor grouped(const at::Tensor& x, std::int64_t groups) {
  return x.reshape({x.size(0), groups, x.size(1) / groups * x.size(2), x.size(3)});
}

// Some rows of the tile's score matrix.
class Slice {
 public:
  Slice(const Scores& scores, const Tile& tile, const Inputs& in, std::int64_t first, std::int64_t rows)
      : scores_(scores), tile_(tile), groups_(in.k.size(1)), type_(accumulate_type(in.q.scalar_type())) {
    tile_.q = {tile.q.local + first, tile.q.global + first, rows};
    q = in.q.narrow(2, first, rows).to(type_);
    k = in.k.to(type_);
    v = in.v.to(type_);
  }

  at::Tensor scores() const {
    auto s = times(q, k.transpose(2, 3)).mul_(scores_.scale);
    const auto bias = bias_of(scores_, tile_, q, false);
    return bias.defined() ? s.add_(bias) : s;
  }
  // The dropout mask divided by the keep probability; undefined without dropout.
  at::Tensor kept() const {
    if (scores_.dropout == 0) return {};
    GlobalRegion region = scores_.region;
    region.segments.resize(2);
    region.segments.push_back({Segment{tile_.q.global, tile_.q.length}});
    region.segments.push_back({Segment{tile_.kv.global, tile_.kv.length}});
    auto mask = at::empty({q.size(0), q.size(1), q.size(2), k.size(2)}, q.options());
    const double keep = 1 - scores_.dropout;
    fill_bernoulli(mask, region, scores_.key, keep);
    return mask.mul_(keep == 0 ? 0 : 1 / keep);
  }
  // Multiplies [b, h, l, x] by one matrix per key head.
  at::Tensor times(const at::Tensor& rows, const at::Tensor& columns) const {
    return at::matmul(grouped(rows, groups_), columns).view({rows.size(0), rows.size(1), rows.size(2), -1});
  }
  // Sums over the rows, and over the query heads of a group.
  at::Tensor over_rows(const at::Tensor& left, const at::Tensor& right) const {
    return at::matmul(grouped(left, groups_).transpose(2, 3), grouped(right, groups_));
  }

  at::Tensor q, k, v;

 private:
  const Scores& scores_;
  Tile tile_;
  std::int64_t groups_;
  at::ScalarType type_;
};

std::int64_t rows_at_once(const Tile& tile, const Inputs& in) {
  const auto row = std::max<std::int64_t>(in.q.size(0) * in.q.size(1) * tile.kv.length, 1);
  return std::clamp<std::int64_t>(kScoresAtOnce / row, 1, tile.q.length);
}

TileResult math_forward(const Scores& scores, const Tile& tile, const Inputs& in, bool with_row_max) {
  const auto rows = rows_at_once(tile, in);
  std::vector<at::Tensor> outs, sums, row_maxima;
  for (std::int64_t first = 0; first < tile.q.length; first += rows) {
    const Slice slice(scores, tile, in, first, std::min(rows, tile.q.length - first));
    auto weights = slice.scores();
    if (with_row_max) {
      const auto row_max = weights.amax({3}, true);
      row_maxima.push_back(row_max.masked_fill(exceeds_log_precision(row_max).logical_not(), 0));
      weights.sub_(row_maxima.back());
    }
    auto lse = at::logsumexp(weights, {3}, true);
    lse.masked_fill_(lse.eq(-kNothing), std::numeric_limits<double>::quiet_NaN());  // +inf - inf; +inf is no key
    weights.sub_(lse.masked_fill(lse.eq(kNothing), 0)).exp_();
    if (const auto kept = slice.kept(); kept.defined()) weights.mul_(kept);
    outs.push_back(slice.times(weights, slice.v));
    sums.push_back(lse.squeeze(3));
  }
  return {at::cat(outs, 2), at::cat(sums, 2), with_row_max ? at::cat(row_maxima, 2).squeeze(3) : at::Tensor()};
}

Inputs math_backward(const Scores& scores, const Tile& tile, const Inputs& in, const RowState& rows) {
  const auto at_once = rows_at_once(tile, in);
  Inputs sum;
  std::vector<at::Tensor> dq;
  for (std::int64_t first = 0; first < tile.q.length; first += at_once) {
    const auto count = std::min(at_once, tile.q.length - first);
    const Slice slice(scores, tile, in, first, count);
    const auto part = [&](const at::Tensor& t) { return t.narrow(2, first, count).to(slice.q.scalar_type()); };
    const auto grad = part(rows.grad);
    auto weights = slice.scores();
    if (rows.row_max.defined()) weights.sub_(part(rows.row_max).unsqueeze(3));
    weights.sub_(part(rows.lse).unsqueeze(3)).exp_();
    auto dweights = slice.times(grad, slice.v.transpose(2, 3));
    const auto kept = slice.kept();
    const auto dv = slice.over_rows(kept.defined() ? weights * kept : weights, grad);
    if (kept.defined()) dweights.mul_(kept);
    const auto dscores = weights.mul_(dweights.sub_(part(rows.delta).unsqueeze(3))).mul_(scores.scale);
    dq.push_back(slice.times(dscores, slice.k));
    const auto dk = slice.over_rows(dscores, slice.q);
    sum.k = sum.k.defined() ? sum.k.add_(dk) : dk;
    sum.v = sum.v.defined() ? sum.v.add_(dv) : dv;
  }
  sum.q = at::cat(dq, 2);
  return sum;
}

}  // namespace

bool has_flash_kernel(const at::Tensor& q, const at::Tensor& v) {
  if (q.device().is_cpu()) return q.size(3) > 0;
  constexpr std::int64_t kUnit = 8, kMost = 256;
  const auto features = q.size(3);
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return half && features == v.size(3) && features % kUnit == 0 && features > 0 && features <= kMost;
}

at::ScalarType accumulate_type(at::ScalarType type) { return at::toOpMathType(type); }

TileResult attend_tile(const Scores& scores, const Tile& tile, const Inputs& in) {
  // On a device the host does not read whether the maximum of a row matters.
  return by_flash(scores, tile, in) ? flash_forward(scores, tile, in)
                                    : math_forward(scores, tile, in, /*with_row_max=*/!in.q.is_cpu());
}

TileResult attend_tile_with_row_max(const Scores& scores, const Tile& tile, const Inputs& in) {
  return math_forward(scores, tile, in, /*with_row_max=*/true);
}

at::Tensor exceeds_log_precision(const at::Tensor& numbers) {
  return numbers.abs().gt(kFar).logical_and_(numbers.isfinite());
}

Inputs tile_gradients(const Scores& scores, const Tile& tile, const Inputs& in, const RowState& rows) {
  const bool with_row_max = rows.row_max.defined() && (!in.q.is_cpu() || item_or(rows.row_max.ne(0).any(), false));
  const bool has_nan = in.q.is_cpu() && item_or(rows.lse.isnan().any(), false);  // see may_lose_nan()
  return by_flash(scores, tile, in) && !with_row_max && !has_nan ? flash_backward(scores, tile, in, rows)
                                                                 : math_backward(scores, tile, in, rows);
}

bool mask_sees(const Scores& scores, const Tile& tile) {
  const auto part = mask_part(scores, tile);
  if (!part.defined() || !part.is_cpu()) return true;
  return item_or((part.scalar_type() == at::kBool ? part : part.ne(kNothing)).any(), true);
}

}  // namespace dtensor::attention_impl
