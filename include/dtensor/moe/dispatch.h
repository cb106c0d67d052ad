// Dispatchers: how token rows get to the ranks that hold their experts, and back. A strategy object each; all give the
// experts the same rows, and each sum of a token is taken in the same order.
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

// Dimension 0 of `input` is cut into input_splits[i] rows for member i, in order; the result holds output_splits[i]
// rows from member i, in order. What i sends to j must be what j expects of i. Any dtype; differentiable for floating
// ones (the gradient goes the same way back, splits swapped). Collective, also where all splits are 0. With one member
// it returns `input` itself. `overlap_fn` runs while the rows are under way (where the backend works in the
// background).
using OverlapFn = std::function<void()>;
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef output_splits, at::IntArrayRef input_splits,
                                  const Communicator& comm, const OverlapFn& overlap_fn = {});

// The same where the receivers do not know the sizes: exchanges them first. Two collectives.
DTENSOR_API at::Tensor all_to_all(const at::Tensor& input, at::IntArrayRef input_splits, const Communicator& comm);

// What each member sends to this one, given what this one sends to each. Collective.
DTENSOR_API std::vector<std::int64_t> exchange_splits(at::IntArrayRef input_splits, const Communicator& comm);

// Every member's rows one after the other; `rows[i]` of them from member i. Differentiable: each member's gradient is
// the sum of what all members have for its rows (a reduce-scatter). sum_rows is the reverse: each member gives a tensor
// of all rows and receives the sum of its own.
DTENSOR_API at::Tensor all_gather_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);
DTENSOR_API at::Tensor reduce_scatter_rows(const at::Tensor& input, at::IntArrayRef rows, const Communicator& comm);

// What a strategy knows of a pass beyond what all strategies do.
struct DTENSOR_API DispatchDetails {
  virtual ~DispatchDetails() = default;
};

// What one forward pass does; made by prepare().
struct DispatchPlan {
  at::Tensor position;                       // [tokens, choices] the row of each entry among those sent; -1: dropped
  at::Tensor weights;                        // [tokens, choices]
  bool apply_probs_before_experts = false;   // rows are multiplied by them before they are sent, results are not
  std::int64_t sent = 0;                     // rows
  at::Tensor counts;                         // [local experts] int64: rows of each, where the rows are
  std::vector<std::int64_t> rows;            // the same; empty off the CPU where no exchange needs it
  std::int64_t dropped = 0;                  // entries of this rank
  std::shared_ptr<DispatchDetails> details;  // of the dispatcher that made the plan

  at::IntArrayRef host_rows();  // reads `counts` where nobody has yet
};

// Brings tokens to the ranks of their experts and results back.
class DTENSOR_API Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  // `layout` says where the tokens stand in the batch, which capacities and forced balance go by.
  virtual DispatchPlan prepare(const Routing& routing, const TokenLayout& layout) const = 0;
  // x [tokens, D] to rows in order of local experts: plan.rows[e] of expert e, by source rank, then by entry.
  // Differentiable, as combine() is. Completes the plan.
  // `overlap_fn` runs once, while the rows are under way; a layer does it afterwards where that did not come.
  virtual at::Tensor dispatch(const at::Tensor& x, DispatchPlan& plan, const OverlapFn& overlap_fn = {}) const = 0;
  // What the experts made of those rows, to [tokens, D].
  // `base`, if defined, is added: in place where no gradient is recorded and it shares no memory with any of `keep`.
  virtual at::Tensor combine(const at::Tensor& rows, const DispatchPlan& plan, const at::Tensor& base = {},
                             at::TensorList keep = {}) const = 0;
  virtual const char* name() const = 0;
  const Communicator& ranks() const { return ranks_; }  // each holds an equal run of the experts; none: this rank alone

 protected:
  explicit Dispatcher(Communicator ranks) : ranks_(std::move(ranks)) {}
  // As ranks().
  Communicator ranks_;
};
// Shared by the layers of a model.
using DispatcherPtr = std::shared_ptr<const Dispatcher>;

// Which tokens an expert drops that is over its capacity.
enum class DropPolicy : std::uint8_t {
  position,     // what comes later in the batch
  probability,  // what has the smaller weight
};
// Of a dispatcher with a capacity.
struct CapacityOptions {
  // Each expert takes int(factor * choices * tokens / experts) entries of the batch; 0: all.
  double factor = 0;
  DropPolicy drop = DropPolicy::position;
};

// For experts that are all on this rank.
DTENSOR_API DispatcherPtr local_dispatcher();
// Every rank sees every token and computes its experts' part; one reduction.
DTENSOR_API DispatcherPtr all_gather_dispatcher(const Communicator& ranks);
// Dropless: counts, then rows.
DTENSOR_API DispatcherPtr all_to_all_dispatcher(const Communicator& ranks);
DTENSOR_API DispatcherPtr capacity_all_to_all_dispatcher(const Communicator& ranks, CapacityOptions options);
// For RouterChoice::round_robin with equal numbers of tokens on all ranks: all is known, rows alone are exchanged.
DTENSOR_API DispatcherPtr equal_all_to_all_dispatcher(const Communicator& ranks);

// Sets the experts of entries over capacity to none; returns how many here. Collective over layout.ranks.
DTENSOR_API std::int64_t drop_over_capacity(Routing& routing, const TokenLayout& layout,
                                            const CapacityOptions& options);

}  // namespace dtensor
