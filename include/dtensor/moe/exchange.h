// Rows between ranks and between places: an uneven, differentiable all-to-all, the histogram and the permutations that
// a dispatch of tokens to experts is made of. Everything here works on local (plain) tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// Dimension 0 of `input` is cut into input_splits[i] rows for member i, in order; the result holds output_splits[i]
// rows from member i, in order. What i sends to j must be what j expects of i. Any dtype; differentiable for floating
// ones (the gradient goes the same way back, splits swapped). Collective, also where all splits are 0. With one member
// it returns `input` itself. `meanwhile` runs while the rows are under way (where the backend works in the background).
using Meanwhile = std::function<void()>;
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                                  const Communicator& comm, const Meanwhile& meanwhile = {});
// The same where the receivers do not know the sizes: exchanges them first. Two collectives.
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef input_splits, const Communicator& comm);
// What each member sends to this one, given what this one sends to each. Collective.
DTENSOR_API std::vector<std::int64_t> exchange_splits(at::IntArrayRef input_splits, const Communicator& comm);

// Every member's rows one after the other; `rows[i]` of them from member i. Differentiable: each member's gradient is
// the sum of what all members have for its rows (a reduce-scatter). sum_rows is the reverse: each member gives a tensor
// of all rows and receives the sum of its own.
DTENSOR_API at::Tensor gather_rows_of_ranks(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);
DTENSOR_API at::Tensor sum_rows_of_ranks(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);

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
DTENSOR_API at::Tensor expand_rows(const at::Tensor& x, const at::Tensor& position, std::int64_t kept);
// combine: out[t] = sum_j weight[t, j] * rows[position[t, j]], the sum in order of j and in float for 16-bit rows: the
// same on every run. `weight` undefined: all ones.
DTENSOR_API at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& position, const at::Tensor& weight = {});

// base + combine_rows(...). Written into `base` where no gradient is recorded and `base` shares no memory with any of
// `keep` (a shared expert may return its own input): the same numbers either way.
DTENSOR_API at::Tensor add_combined(const at::Tensor& base, const at::Tensor& rows, const at::Tensor& position,
                                    const at::Tensor& weight, at::TensorList keep);

// Blocks of sizes[i] rows of `input`, put one after the other in the order given; what `order` leaves out is left out.
// spread_blocks is the reverse: the i-th piece of `input` becomes block order[i], blocks left out are zero. Each is the
// other's gradient.
DTENSOR_API at::Tensor reorder_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order);
DTENSOR_API at::Tensor spread_blocks(const at::Tensor& input, at::IntArrayRef sizes, at::IntArrayRef order);

}  // namespace dtensor
