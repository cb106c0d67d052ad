// Dispatchers send token rows to the ranks of their experts and the results back. All dispatchers give the experts the
// same rows and sum the results of a token in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"
#include "dtensor/moe/router.h"

namespace dtensor {

// Sends input_splits[i] rows of `input` (dimension 0) to each rank i; the result holds output_splits[i] rows from each
// rank i, in rank order. input_splits[j] on rank i must equal output_splits[i] on rank j. Any dtype; differentiable for
// floating dtypes (backward is an all-to-all with swapped splits). Collective, also if all splits are 0. With one rank
// it returns `input`.
// `overlap_fn` runs while the rows are in transit, if the backend communicates asynchronously.
using OverlapFn = std::function<void()>;
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                                  const Communicator& comm, const OverlapFn& overlap_fn = {});

// Same, for receivers without known splits: exchanges the splits first. Two collectives.
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef input_splits, const Communicator& comm);

// The number of rows that each rank sends to this one, given those that this rank sends. Collective.
DTENSOR_API std::vector<std::int64_t> exchange_splits(at::IntArrayRef input_splits, const Communicator& comm);

// all_gather_rows concatenates the rows of all ranks; rows[i] is the number of rows of rank i. Its gradient is a
// reduce-scatter. reduce_scatter_rows is the transpose: each rank gives a tensor of all rows and receives the sum of
// its own rows.
DTENSOR_API at::Tensor all_gather_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);
DTENSOR_API at::Tensor reduce_scatter_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);

// Base class of the state that a dispatcher keeps for one forward pass.
struct DTENSOR_API DispatchDetails {
  virtual ~DispatchDetails() = default;
};

// Plan of one forward pass; created by prepare().
struct DispatchPlan {
  at::Tensor position;                       // [tokens, choices] row of each entry among the rows sent; -1: dropped
  at::Tensor weights;                        // [tokens, choices]
  bool apply_probs_before_experts = false;   // rows are multiplied by the weights before sending, results are not
  std::int64_t sent = 0;                     // number of rows sent
  at::Tensor counts;                         // [local experts] int64: rows of each local expert
  std::vector<std::int64_t> rows;            // same on the host; empty for other devices if no exchange needs it
  std::int64_t dropped = 0;                  // dropped entries of this rank
  std::shared_ptr<DispatchDetails> details;  // state of the dispatcher that created the plan

  at::IntArrayRef host_rows();  // copies `counts` to the host on first use
};

// Sends tokens to the ranks of their experts and returns the results.
class DTENSOR_API Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  // `layout` gives the positions of the tokens in the batch, which capacities and forced balance depend on.
  virtual DispatchPlan prepare(const Routing& routing, const TokenLayout& layout) const = 0;
  // Returns the rows for the local experts from x [tokens, D]: plan.rows[e] rows for expert e, ordered by source rank,
  // then by entry. Completes the plan. Differentiable, as is combine().
  // `overlap_fn` runs at most once, while the rows are in transit. If the dispatcher does not call it, the layer runs
  // it afterwards.
  virtual at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const OverlapFn& overlap_fn = {}) const = 0;
  // Returns the experts' results for these rows to [tokens, D]. `base`, if defined, is added: in place if no gradient
  // is recorded and it shares no memory with the tensors of `keep`.
  virtual at::Tensor combine(const at::Tensor& rows, const DispatchPlan& plan, const at::Tensor& base = {},
                             at::TensorList keep = {}) const = 0;
  virtual const char* name() const = 0;
  const Communicator& ranks() const {
    return ranks_;
  }  // ranks that share the experts equally; undefined: this rank alone

 protected:
  explicit Dispatcher(Communicator ranks) : ranks_(std::move(ranks)) {}
  // See ranks().
  Communicator ranks_;
};
// Dispatchers are immutable and shared by the layers of a model.
using DispatcherPtr = std::shared_ptr<const Dispatcher>;

// Which tokens an expert drops if it exceeds its capacity.
enum class DropPolicy : std::uint8_t {
  position,     // entries later in the batch
  probability,  // entries with smaller weight
};
// Options of capacity_all_to_all_dispatcher().
struct CapacityOptions {
  // Capacity of each expert: int(factor * choices * tokens / experts) entries of the batch; 0: unlimited.
  double factor = 0;
  DropPolicy drop = DropPolicy::position;
};

// For experts that are all on this rank.
DTENSOR_API DispatcherPtr local_dispatcher();
// All-gathers the tokens; each rank computes its experts, and one reduce-scatter sums the results.
DTENSOR_API DispatcherPtr all_gather_dispatcher(const Communicator& ranks);
// Dropless: exchanges counts, then rows.
DTENSOR_API DispatcherPtr all_to_all_dispatcher(const Communicator& ranks);
// The same rows in segments of one size for each pair of ranks: rows, then zero rows up to the largest segment of all
// ranks, which receivers drop. For networks and backends whose all-to-all is fast for equal sizes only.
DTENSOR_API DispatcherPtr padded_all_to_all_dispatcher(const Communicator& ranks);
DTENSOR_API DispatcherPtr capacity_all_to_all_dispatcher(const Communicator& ranks, CapacityOptions options);
// For RouterChoice::round_robin with the same number of tokens on all ranks: the counts are known, so only rows are
// exchanged.
DTENSOR_API DispatcherPtr equal_all_to_all_dispatcher(const Communicator& ranks);

// Unassigns entries over capacity (expert = expert_count) and returns their number on this rank. Collective over
// layout.ranks.
DTENSOR_API std::int64_t drop_over_capacity(Routing& routing, const TokenLayout& layout,
                                            const CapacityOptions& options);

}  // namespace dtensor
