// Exchanges the operand rows of taps, and sums them with their weights.
#include "ops/local_kernels/spatial/row_taps.h"

#include <algorithm>

#include "redistribute/regions/part_views.h"

namespace dtensor {
namespace {

// The operand rows of all taps of these result rows, in ascending order without repetition.
Segments tapped_rows(const Segments& rows, const TapsOfRow& taps) {
  std::vector<std::int64_t> found;
  for (const Segment& s : rows) {
    for (std::int64_t row = s.offset; row < s.offset + s.length; ++row) {
      for (const Tap& tap : taps(row)) found.push_back(tap.row);
    }
  }
  std::sort(found.begin(), found.end());
  Segments all;
  for (const std::int64_t row : found) {
    const std::int64_t end = all.empty() ? -1 : all.back().offset + all.back().length;
    if (row > end || all.empty()) all.push_back({row, 1});
    if (row == end) ++all.back().length;
  }
  return all;
}

HaloExchange exchange_of(const MeshImpl& mesh, const TensorSpec& operand, const TensorSpec& result, std::int64_t dim,
                         const TapsOfRow& taps) {
  const AxisMask axes = shard_axes(&operand, dim);
  std::vector<Segments> fetched;
  for (const Segments& rows : segments_of_ranks(result, dim, axes)) fetched.push_back(tapped_rows(rows, taps));
  return {mesh.communicator(axes), dim, segments_of_ranks(operand, dim, axes), std::move(fetched)};
}

at::Tensor along(const at::Tensor& vector, std::int64_t dim, const at::Tensor& like) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
  sizes[static_cast<std::size_t>(dim)] = -1;
  return vector.view(sizes);
}

}  // namespace

RowTaps::RowTaps(const MeshImpl& mesh, const TensorSpec& operand, const TensorSpec& result, std::int64_t dim,
                 const TapsOfRow& taps)
    : exchange_(exchange_of(mesh, operand, result, dim, taps)) {
  add_rows(own_segments(&result, dim, result.sizes[static_cast<std::size_t>(dim)]), taps);
}

void RowTaps::add_rows(const Segments& own, const TapsOfRow& taps) {
  rows_.resize(taps(0).size());
  weights_.resize(rows_.size());
  weighted_ = rows_.size() > 1;
  for (const Segment& s : own) {
    for (std::int64_t row = s.offset; row < s.offset + s.length; ++row) {
      const Taps terms = taps(row);
      for (std::size_t t = 0; t < terms.size(); ++t) {
        rows_[t].push_back(concatenated_index(exchange_.fetched(), terms[t].row));
        weights_[t].push_back(terms[t].weight);
      }
    }
  }
}

at::Tensor RowTaps::apply(const at::Tensor& operand) const {
  const auto dim = exchange_.dim();
  const auto fetched = exchange_.fetch_halo(operand);
  const auto indices = operand.options().dtype(at::kLong);
  if (!weighted_) return fetched.index_select(dim, at::tensor(rows_[0], at::kLong).to(indices));
  const auto exact = fetched.to(accumulate_type(operand.scalar_type()));
  at::Tensor sum;
  for (std::size_t t = 0; t < rows_.size(); ++t) {
    const auto weights = along(at::tensor(weights_[t], at::kDouble).to(exact.options()), dim, exact);
    auto term = exact.index_select(dim, at::tensor(rows_[t], at::kLong).to(indices)).mul_(weights);
    sum = sum.defined() ? sum.add_(term) : term;
  }
  return sum.to(operand.scalar_type());
}

at::Tensor RowTaps::apply_adjoint(const at::Tensor& grad) const {
  const auto dim = exchange_.dim();
  const auto exact = grad.to(accumulate_type(grad.scalar_type()));
  auto sizes = grad.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = total_length(exchange_.fetched());
  const auto shares = at::zeros(sizes, exact.options());
  for (std::size_t t = 0; t < rows_.size() && exact.numel() > 0; ++t) {
    const auto weights = along(at::tensor(weights_[t], at::kDouble).to(exact.options()), dim, exact);
    shares.index_add_(dim, at::tensor(rows_[t], at::kLong).to(grad.options().dtype(at::kLong)),
                      weighted_ ? exact * weights : exact);
  }
  return exchange_.reduce_halo(shares.to(grad.scalar_type()));
}

}  // namespace dtensor
