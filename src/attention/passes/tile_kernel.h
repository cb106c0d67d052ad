// One tile of attention on local tensors: its result and log-sum-exp, and its gradients given those of the whole row.
#pragma once

#include <ATen/core/Tensor.h>

#include "attention/passes/tiles.h"
#include "random/fill.h"

namespace dtensor::attention_impl {

// What turns scores into weights, the same for every tile and in both passes.
struct Scores {
  Pattern pattern;
  // [1 or b, 1 or h, l or L or 1, S or 1], bool or floating; undefined: none. Columns are of the whole sequence; rows
  // are this rank's where `has_local_rows`, else the whole's. 1: the same for all.
  at::Tensor mask;
  bool has_local_rows = false;
  double scale = 1;
  double dropout = 0;
  RandomKey key;        // of the dropout
  GlobalRegion region;  // of the scores [B, H, L, S]: what this rank has of batch and heads; the others per tile
};

// Half types are merged and summed in float.
at::ScalarType accumulate_type(at::ScalarType type);

struct Inputs {
  at::Tensor q, k, v;  // [b, h, l, e], [b, g, s, e], [b, g, s, f]; the last dimension dense
};

// A row whose largest score is far from zero, as large queries or a mask of large negative numbers make it, has no room
// for the logarithm of a sum beside that score (-1e9 + log 2 is -1e9 in float): there the largest score is kept apart.
struct Partial {
  at::Tensor out;       // [b, h, l, f]
  at::Tensor lse;       // [b, h, l], -inf where nothing is seen
  at::Tensor top = {};  // [b, h, l], to be added to lse; undefined: zeros
};

// `in` holds the tile's rows alone.
Partial attend_tile(const Scores& scores, const Tile& tile, const Inputs& in);
// The same by products, with the largest scores of far rows apart.
Partial attend_tile_with_row_max(const Scores& scores, const Tile& tile, const Inputs& in);

// Elementwise: numbers beside which float has no room for the logarithm of a sum.
at::Tensor exceeds_log_precision(const at::Tensor& numbers);

// Of the rows of queries over all keys, for the backward pass.
struct RowState {
  at::Tensor grad;   // of the result, [b, h, l, f]
  at::Tensor out;    // [b, h, l, f]
  at::Tensor lse;    // [b, h, l], sinks included; +inf where nothing is seen, so that weights are 0
  at::Tensor top;    // [b, h, l], to be added to lse; undefined: zeros
  at::Tensor delta;  // [b, h, l]: sum of grad * out
};

// Gradients of q, k and v of this tile.
Inputs tile_gradients(const Scores& scores, const Tile& tile, const Inputs& in, const RowState& rows);

// Whether some query of the tile sees some key by the mask.
bool mask_sees(const Scores& scores, const Tile& tile);

}  // namespace dtensor::attention_impl
