// One tile of attention on local tensors: its result with log-sum-exp, and its gradients given the statistics of the
// full row.
#pragma once

#include <ATen/core/Tensor.h>

#include "attention/passes/tiles.h"
#include "random/fill.h"

namespace dtensor::attention_impl {

// Parameters of the scores, the same for all tiles and in both passes.
struct Scores {
  Pattern pattern;
  // [1 or b, 1 or h, l or L or 1, S or 1], bool or floating; undefined: none. Columns are global; rows are local if
  // `has_local_rows`, else global. Size 1 broadcasts.
  at::Tensor mask;
  bool has_local_rows = false;
  double scale = 1;
  double dropout = 0;
  RandomKey key;        // of the dropout
  GlobalRegion region;  // of the scores [B, H, L, S]: this rank's batch and heads; rows and columns are set per tile
};

// Half types are merged and summed in float.
at::ScalarType accumulate_type(at::ScalarType type);

struct Inputs {
  at::Tensor q, k, v;  // [b, h, l, e], [b, g, s, e], [b, g, s, f]; last dimension dense
};

// Large queries, or a mask with large negative numbers, move the maximum score of a row far from zero. Float then
// cannot represent the log-sum-exp precisely (-1e9 + log 2 is -1e9), so the maximum is stored separately.
struct TileResult {
  at::Tensor out;           // [b, h, l, f]
  at::Tensor lse;           // [b, h, l], -inf for rows without visible keys
  at::Tensor row_max = {};  // [b, h, l], added to lse; undefined: zeros
};

// `in` contains the rows of the tile only.
TileResult attend_tile(const Scores& scores, const Tile& tile, const Inputs& in);
// Same with matrix products; stores the maximum score of rows far from zero separately.
TileResult attend_tile_with_row_max(const Scores& scores, const Tile& tile, const Inputs& in);

// Elementwise: whether a float log-sum-exp of this size would be imprecise.
at::Tensor exceeds_log_precision(const at::Tensor& numbers);

// Statistics of query rows over all keys, for the backward pass.
struct RowState {
  at::Tensor grad;     // gradient of the result, [b, h, l, f]
  at::Tensor out;      // [b, h, l, f]
  at::Tensor lse;      // [b, h, l], including sinks; +inf for rows without visible keys, which makes weights 0
  at::Tensor row_max;  // [b, h, l], added to lse; undefined: zeros
  at::Tensor delta;    // [b, h, l]: sum of grad * out
};

// Gradients of q, k and v of this tile.
Inputs tile_gradients(const Scores& scores, const Tile& tile, const Inputs& in, const RowState& rows);

// Whether the mask lets any query of the tile attend to any key. On a device: true, since reading would synchronize.
bool mask_sees(const Scores& scores, const Tile& tile);

}  // namespace dtensor::attention_impl
