// Dispatchers send token rows to the ranks of their experts and the results back. All dispatchers give the experts the
// same rows and sum the results of a token in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
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
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                                  const Communicator& comm, const std::function<void()>& overlap_fn = {});

// Same, for receivers without known splits: exchanges the splits first. Two collectives.
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef input_splits, const Communicator& comm);

// all_gather_rows concatenates the rows of all ranks; rows[i] is the number of rows of rank i. Its gradient is a
// reduce-scatter. reduce_scatter_rows is the transpose: each rank gives a tensor of all rows and receives the sum of
// its own rows.
DTENSOR_API at::Tensor all_gather_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);
DTENSOR_API at::Tensor reduce_scatter_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);

// Plan of one forward pass; created by prepare().
struct DispatchPlan {
  at::Tensor position;                      // [tokens, choices] row of each entry among the rows sent; -1: dropped
  at::Tensor weights;                       // [tokens, choices]
  bool apply_probs_before_experts = false;  // rows are multiplied by the weights before sending, results are not
  std::int64_t sent = 0;                    // number of rows sent
  at::Tensor counts;                        // [local experts] int64: rows of each local expert
  std::vector<std::int64_t> rows;           // same on the host; empty for other devices if no exchange needs it
  std::int64_t dropped = 0;                 // dropped entries of this rank
  std::any details;                         // state of the dispatcher that created the plan

  at::IntArrayRef host_rows();  // copies `counts` to the host on first use
};

// Sends tokens to the ranks of their experts and returns the results. Immutable, and shared by the layers of a model.
class DTENSOR_API Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  // `layout` gives the positions of the tokens in the batch, which capacities and forced balance depend on.
  virtual DispatchPlan prepare(const Routing& routing, const TokenLayout& layout) const = 0;
  // Returns the rows for the local experts from x [tokens, D]: plan.rows[e] rows for expert e, ordered by source rank,
  // then by entry. Completes the plan. Differentiable, as is combine().
  // `overlap_fn` runs at most once, while the rows are in transit. If the dispatcher does not call it, the layer runs
  // it afterwards.
  virtual at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan,
                              const std::function<void()>& overlap_fn = {}) const = 0;
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
// Options of DispatchKind::capacity.
struct CapacityOptions {
  // Which tokens an expert drops if it exceeds its capacity.
  enum class Drop : std::uint8_t {
    position,     // entries later in the batch
    probability,  // entries with smaller weight
  };
  // Capacity of each expert: int(factor * choices * tokens / experts) entries of the batch; 0: unlimited.
  double factor = 0;
  Drop drop = Drop::position;
};

// Dispatchers of the library.
enum class DispatchKind : std::uint8_t {
  all_to_all,  // dropless: exchanges counts, then rows
  all_gather,  // all-gathers the tokens; each rank computes its experts, and one reduce-scatter sums the results
  capacity,    // as all_to_all, without the entries beyond CapacityOptions::factor
  equal,       // for RouterChoice::round_robin with the same number of tokens on all ranks, whose counts are known
  padded,      // as all_to_all, in segments of one size for each pair of ranks, filled up with zero rows that receivers
               // drop. For networks and backends whose all-to-all is fast for equal sizes only
};
// `ranks`: those that share the experts; undefined: all experts are on this rank.
DTENSOR_API std::shared_ptr<const Dispatcher> make_dispatcher(DispatchKind kind, const Communicator& ranks,
                                                              CapacityOptions capacity = {});

}  // namespace dtensor
