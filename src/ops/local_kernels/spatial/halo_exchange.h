// Windows that go over a dimension which is split: the rows of the operand that a rank's rows of the result look at,
// and the exchange that brings them. Of neighbours' rows only those come that a window reaches.
#pragma once

#include <vector>

#include "mesh/mesh_impl.h"
#include "placement/shard_map.h"
#include "placement/spec.h"
#include "redistribute/plan/region.h"

namespace dtensor {

// Row j of the result looks at rows [j * stride - before, j * stride - before + length) of the operand; what of that
// lies outside of it is padding. Transposed: row i of the operand is looked at by rows
// [i * stride - before, i * stride - before + length) of the result. Mirrored: at row n - 1 - j of n, which is how a
// flip sees it.
struct Window {
  std::int64_t stride = 1, before = 0, length = 1;
  bool mirrored = false, transposed = false;
};

class HaloExchange {
 public:
  // Both tensors are split along `dim` by the same mesh axes. Sizes may differ.
  HaloExchange(const MeshImpl& mesh, const TensorSpec& operand, const TensorSpec& result, std::int64_t dim,
               const Window& window);

  // Rows of the result that follow each other, and what they look at.
  struct Piece {
    std::int64_t first, rows;    // of this rank's part of the result
    std::int64_t from, length;   // of the fetched rows
    std::int64_t before, after;  // rows of padding on either side; negative never; none where it is transposed
    std::int64_t row, begin;     // in the whole result and operand: where both begin
  };
  const std::vector<Piece>& pieces() const { return pieces_; }  // none where it is mirrored
  std::int64_t dim() const { return dim_; }
  const Segments& fetched() const;  // the rows that this rank looks at

  // Collective over the ranks that split the dimension, whether they have rows or not.
  // The rows of the operand that this rank looks at, of its own and of others, in their order.
  at::Tensor fetch_halo(const at::Tensor& local) const;
  // This rank's part of the sum of all ranks' shares of the rows that each of them fetched.
  at::Tensor reduce_halo(const at::Tensor& shares) const;

 private:
  Region region(const at::Tensor& local, const Segments& rows) const;

  const Communicator& members_;
  std::int64_t dim_;
  std::vector<Segments> held_, fetched_;  // of each member
  std::vector<Piece> pieces_;
};

}  // namespace dtensor
