// Views that are slices of their base, or entries of it: rows that belong to the same rank in both do not move.
#pragma once

#include <optional>
#include <vector>

#include "placement/spec.h"
#include "redistribute/regions/shard_rows.h"

namespace dtensor {

class SlicedView {
 public:
  // `offset`: of the view in the memory of the base. Empty if the view's dimensions are not, in this order, slices of
  // the base's, or if a mesh axis shards different dimensions of both or makes one of them Partial.
  static std::optional<SlicedView> find(const TensorSpec& base, const TensorSpec& view, std::int64_t offset);

  // This rank's part of the view, from its part of the base; and the reverse. Both exchange rows. Collective.
  at::Tensor read(const at::Tensor& base) const;
  void write(const at::Tensor& view, const at::Tensor& base) const;

 private:
  SlicedView(const TensorSpec& base, const TensorSpec& view) : base_(base), view_(view) {}
  bool match(const std::vector<std::int64_t>& position, std::size_t dim, std::size_t view_dim);
  bool is_placed_alike() const;
  AxisMask axes_of(std::size_t dim) const;
  std::vector<Segments> view_rows(std::size_t dim, AxisMask axes) const;
  void copy_rows(const at::Tensor& rows, const at::Tensor& base, std::size_t dim) const;

  const TensorSpec &base_, &view_;
  std::vector<Slice> slices_;                         // one per dimension of the base
  std::vector<std::optional<std::size_t>> view_dim_;  // the same dimension of the view; empty: an entry is selected
};

}  // namespace dtensor
