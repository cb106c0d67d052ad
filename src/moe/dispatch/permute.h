// Rows between places of one rank: the histogram, the sort by bin and the permutations that a dispatch of tokens to
// experts is made of. Everything here works on local tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// How often each of 0 .. bins-1 occurs in `ids` (int64, any shape); larger values are not counted. [bins], int64.
DTENSOR_API at::Tensor count_bins(const at::Tensor& ids, std::int64_t bins);

// A stable order by bin, as a dispatch needs it. Entries whose bin is `bins` or more are left out (dropped). `counts`
// is what count_bins gives and `kept` its sum, where the caller knows them: off the CPU, the host waits for an unknown
// sum.
struct SortedBins {
  at::Tensor order;     // [kept] int64: the entry at each sorted place
  at::Tensor position;  // [entries] int64: the sorted place of each entry, -1 where it is left out
  at::Tensor counts;    // [bins] int64
};

// For `ids` (int64, any shape) and bins 0 .. bins-1.
DTENSOR_API SortedBins sort_by_bin(const at::Tensor& ids, std::int64_t bins, const at::Tensor& counts = {},
                                   std::int64_t kept = -1);

// `position` names, for each token t and choice j, a row of `rows` (or -1: none): [tokens, choices], each row named at
// most once. All three are each other's gradients and differentiable twice.
// expand: out[position[t, j]] = x[t] for x [tokens, D]; `kept` rows. Where that is more than there are entries, the
// rows that none names are zero.
DTENSOR_API at::Tensor permute_tokens(const at::Tensor& x, const at::Tensor& position, std::int64_t kept);

// combine: out[t] = sum_j weight[t, j] * rows[position[t, j]], the sum in order of j and in float for 16-bit rows: the
// same on every run. `weight` undefined: all ones.
DTENSOR_API at::Tensor unpermute_tokens(const at::Tensor& rows, const at::Tensor& position,
                                        const at::Tensor& weight = {});

// base + unpermute_tokens(...). Written into `base` where no gradient is recorded and `base` shares no memory with any
// of `keep` (a shared expert may return its own input): the same numbers either way.
DTENSOR_API at::Tensor add_unpermuted_tokens(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                                             const at::Tensor& weight, at::TensorList keep);

// Blocks of sizes[i] rows of `input`, put one after the other in the order given; what `order` leaves out is left out.
// scatter_blocks is the reverse: the i-th piece of `input` becomes block order[i], blocks left out are zero. Each is
// the other's gradient.
DTENSOR_API at::Tensor gather_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order);
DTENSOR_API at::Tensor scatter_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order);

}  // namespace dtensor
