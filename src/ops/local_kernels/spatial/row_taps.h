// Operators whose result rows are weighted sums of a few operand rows: paddings that repeat rows, interpolation, roll.
#pragma once

#include <functional>
#include <vector>

#include "ops/local_kernels/local_args.h"
#include "redistribute/regions/halo_exchange.h"

namespace dtensor {

// One term of a row of the result: a row of the operand and its weight.
struct Tap {
  std::int64_t row;
  double weight = 1;
};
using Taps = c10::SmallVector<Tap, 4>;
// The taps of a global row of the result; the same number for all rows, at least 1.
using TapsOfRow = std::function<Taps(std::int64_t row)>;

// The operator along one dimension that both tensors are sharded on by the same mesh axes. Sizes may differ.
class RowTaps {
 public:
  RowTaps(const MeshImpl& mesh, const TensorSpec& operand, const TensorSpec& result, std::int64_t dim,
          const TapsOfRow& taps);

  // This rank's rows of the result. Sums of 16-bit floats are computed in float32. Collective.
  at::Tensor apply(const at::Tensor& operand) const;
  // The adjoint: the gradient of this rank's operand rows. Collective.
  at::Tensor apply_adjoint(const at::Tensor& grad) const;

 private:
  void add_rows(const Segments& own, const TapsOfRow& taps);

  HaloExchange exchange_;
  // For each tap: positions in the fetched rows and weights, one per row of the result.
  std::vector<std::vector<std::int64_t>> rows_;
  std::vector<std::vector<double>> weights_;
  bool weighted_ = false;  // whether a row has several taps or a weight other than 1
};

}  // namespace dtensor
