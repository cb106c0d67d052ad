// Halo exchange for windows over a sharded dimension. It fetches the operand rows that a rank's rows of the result
// read. Only the rows that windows reach are sent.
#pragma once

#include <vector>

#include "internal/region_exchange.h"
#include "mesh/mesh_impl.h"
#include "placement/shard_map.h"
#include "placement/spec.h"
#include "redistribute/regions/shard_rows.h"

namespace dtensor {

// Row j of the result reads rows [j * stride - before, j * stride - before + length) of the operand; rows outside of
// the operand are padding. Transposed: row i of the operand is read by rows [i * stride - before, i * stride - before +
// length) of the result. Mirrored: row j reads row n - 1 - j of n (flip).
struct Window {
  std::int64_t stride = 1, before = 0, length = 1;
  bool mirrored = false, transposed = false;
};

// The range of operand rows that the windows of these result rows span, including padding.
Segment window_span(const Segment& rows, const Window& window);

class HaloExchange {
 public:
  // Both tensors are sharded along `dim` by the same mesh axes. Sizes may differ.
  HaloExchange(const MeshImpl& mesh, const TensorSpec& operand, const TensorSpec& result, std::int64_t dim,
               const Window& window);
  // `held`: the operand rows of each member. `fetched`: the rows that each member reads, in ascending order.
  HaloExchange(const Communicator& members, std::int64_t dim, std::vector<Segments> held,
               std::vector<Segments> fetched);
  // `rows`: the result rows of each member; `n`: the number of operand rows.
  HaloExchange(const Communicator& members, std::int64_t dim, std::vector<Segments> held,
               const std::vector<Segments>& rows, const Window& window, std::int64_t n);

  // Consecutive rows of the result, and the rows that they read.
  struct Piece {
    std::int64_t first, rows;    // in this rank's shard of the result
    std::int64_t from, length;   // in the fetched rows
    std::int64_t before, after;  // non-negative rows of padding on either side; 0 if transposed
    std::int64_t row, begin;     // first row in the global result, and in the global operand
  };
  const std::vector<Piece>& pieces() const { return pieces_; }  // empty unless a window is given, or if mirrored
  std::int64_t dim() const { return dim_; }
  const Segments& fetched() const;  // the rows that this rank reads

  // Rows to add before and after those of a dimension.
  struct Margin {
    std::int64_t dim, before, after;
  };
  // The operand rows that this rank reads, from itself and others, in ascending order, with margins of `value`; `local`
  // itself if no rows are added and no rank reads rows of another. Collective over all ranks that share the dimension,
  // including ranks without rows.
  at::Tensor fetch_halo(const at::Tensor& local, at::ArrayRef<Margin> margins = {}, const at::Scalar& value = 0) const;
  // Sums all ranks' contributions to the rows that they fetched, and returns the sums of this rank's own rows; may
  // alias `shares`. Collective.
  at::Tensor reduce_halo(const at::Tensor& shares) const;

 private:
  void find_messages();
  // The regions of members that have these rows of all columns of `local`.
  std::vector<Region> regions(const at::Tensor& local, const std::vector<Segments>& rows) const;
  TransferPlan plan(const at::Tensor& local, const std::vector<Segments>& from, const std::vector<Segments>& to) const;
  void run(const RegionExchange& exchange) const;

  const Communicator& members_;
  std::int64_t dim_;
  std::vector<Segments> held_, fetched_;  // of each member
  std::vector<Piece> pieces_;
  bool sends_ = false;  // whether a rank reads rows of another
};

}  // namespace dtensor
