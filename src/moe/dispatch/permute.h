// Permutations of rows within a rank, from which a dispatch of tokens to experts is composed: histogram, sort by bin,
// expansion and combination. All functions work on local tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// Number of occurrences of each of 0 .. bins-1 in `ids` (int64, any shape), without larger values. Result: [bins],
// int64.
DTENSOR_API at::Tensor count_bins(const at::Tensor& ids, std::int64_t bins);

// Stable order of entries by bin. Entries with a bin >= `bins` are dropped. `counts` is the result of count_bins() and
// `kept` its sum, if known. On other devices than the CPU an unknown sum synchronizes the host.
struct SortedBins {
  at::Tensor order;     // [kept] int64: the entry at each sorted position
  at::Tensor position;  // [entries] int64: sorted position of each entry; -1: dropped
  at::Tensor counts;    // [bins] int64
};

// For `ids` (int64, any shape) and bins 0 .. bins-1.
DTENSOR_API SortedBins sort_by_bin(const at::Tensor& ids, std::int64_t bins, const at::Tensor& counts = {},
                                   std::int64_t kept = -1);

// `position` [tokens, choices] is the row in `rows` for token t and choice j, or -1 for none; each row occurs at most
// once. All three functions are differentiable twice.
// permute_tokens: out[position[t, j]] = x[t] for x [tokens, D]; the result has `kept` rows. Rows without an entry are
// zero.
DTENSOR_API at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& position, std::int64_t kept);

// unpermute_tokens: out[t] = sum_j weight[t, j] * rows[position[t, j]]. The sum is in order of j, and in float for
// 16-bit rows, so it is deterministic. `weight` undefined: all ones.
DTENSOR_API at::Tensor unpermute_tokens(const at::Tensor& rows, const at::Tensor& position,
                                        const at::Tensor& weight = {});

// base + unpermute_tokens(...). Computed in place in `base` if no gradient is recorded, unless `base` shares memory
// with a tensor of `keep` (a shared expert may return its input). The values are the same either way.
DTENSOR_API at::Tensor add_unpermuted_tokens(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                                             const at::Tensor& weight, at::TensorList keep);

// gather_blocks splits `input` into blocks of sizes[i] rows and concatenates blocks order[0], order[1], ... Blocks may
// be omitted. scatter_blocks is the inverse: piece i of `input` becomes block order[i]; other blocks are zero. Each is
// the other's gradient.
DTENSOR_API at::Tensor gather_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order);
DTENSOR_API at::Tensor scatter_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order);

}  // namespace dtensor
