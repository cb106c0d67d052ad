// One unit: parameters that are gathered together. Knows its gathered copy; when to make and drop it is the schedule's.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"
#include "parallel/fsdp/parameter_shards.h"

namespace dtensor::fsdp {

class LocalCall;
class Schedule;

enum PassKind : std::uint8_t { kForward, kBackward, kInference, kPassKinds };

// How often a unit was used in each of the last passes. Microbatches of other sizes may be computed in other ways,
// which use it more or less often.
class UseCounts {
 public:
  bool none() const { return passes_ == 0; }
  void note(std::int64_t uses) { last_[passes_++ % last_.size()] = uses; }
  // Whether a pass of so many uses may be through: as one of the last ones was, or with more than any had.
  bool may_be_all(std::int64_t uses) const {
    const auto known = last_.begin() + static_cast<std::ptrdiff_t>(std::min(passes_, last_.size()));
    return std::find(last_.begin(), known, uses) != known || uses >= *std::max_element(last_.begin(), known);
  }

 private:
  std::array<std::int64_t, 16> last_ = {};
  std::size_t passes_ = 0;
};

// Where a parameter is placed besides the axes of its unit (tensor parallelism). No mesh: nowhere.
struct TensorParallelAxes {
  DeviceMesh mesh;
  Placements placements;
};

struct Parameter {
  std::string name;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  Weak tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  Placements sharded_placements, unsharded_placements,
      gradient_placements;  // as stored, as computed with, as its gradient ends
  Shape sizes, strides;     // global
  DeviceMesh storage_mesh;  // where it is stored
  TensorParallelAxes tp_axes;
  at::ScalarType dtype;
  std::optional<at::ScalarType> param_dtype;  // holds for whatever dtype the parameter is converted to later
  bool sharded = false;                       // over more than one rank: there is something to gather
  bool in_flat_buffer = false;    // part of the unit's gathered copy: sharded ones, and whatever is kept in host memory
  ParameterLayout layout, shard;  // fetched ones: gathered; this rank's part alone
  std::int64_t offset = 0;        // in the unit's flat buffer, in elements of gather_dtype

  at::Tensor full;                 // gathered: a view of the flat buffer
  std::vector<at::Tensor> pieces;  // of it, by rank: where each one's part lands
  std::uint64_t generation = 0;    // of the parameter when it was gathered
  bool used = false;               // since then
  bool gradient_expected = false;  // used with a graph: its gradient is to come
  bool gradient_arrived = false;   // in this pass
  bool had_gradient = false;       // in the last one that reduced any of the unit's
  at::Tensor pending_gradient;     // its gradient, not reduced yet
  UnsynchronizedGradient earlier;  // where that is only what NoGradientSync left
  // Generation of a parameter that came from the meta device and has not been filled since.
  std::optional<std::uint64_t> uninitialized_generation;

  at::ScalarType gather_dtype() const { return param_dtype.value_or(dtype); }
  // What is gathered in another dtype than the parameter's serves computation in that dtype only.
  bool serves(at::ScalarType asked) const { return gather_dtype() == dtype || gather_dtype() == asked; }
  // Throws where it was made on the meta device and nobody has filled it.
  void check_initialized(const DTensor& parameter) {
    if (C10_UNLIKELY(uninitialized_generation.has_value())) throw_uninitialized(parameter);
  }
  at::Tensor lock() const;  // undefined if it is gone
  // Whether it is placed and laid out as when it came to the unit. What its owner has put elsewhere since then is
  // neither gathered with the unit nor served by it.
  bool has_original_layout(const DTensor& parameter);

 private:
  void throw_uninitialized(const DTensor& parameter);

  std::uint64_t compared_generation_ = UINT64_MAX;  // generation of the parameter when that was found out
  bool has_original_layout_ = false;
};

// Of this rank's part; 0 of an undefined tensor.
inline std::int64_t local_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::NoGradGuard no_grad;
  return static_cast<std::int64_t>(DTensor(tensor).to_local().nbytes());
}

}  // namespace dtensor::fsdp

namespace dtensor {

struct FsdpUnit::Impl {
  Impl(std::vector<fsdp::Parameter> list, const DeviceMesh& on, const FsdpOptions& how, fsdp::Axes where);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool is_offloaded() const { return storage_mesh != mesh; }
  bool is_gathered() const { return flat.defined(); }
  // This rank's share of what was gathered, in between; all that is there.
  std::int64_t kept_shard_bytes() const { return post_forward_shard.defined() ? post_forward_shard.numel() : 0; }
  std::int64_t held_bytes() const { return kept_shard_bytes() + (is_gathered() ? flat_bytes : 0); }
  std::int64_t post_forward_shard_bytes() const;  // of the largest of its neighbours' shares
  // Whether what was gathered of parameter k is still its value.
  bool is_fresh(const fsdp::Parameter& p, const DTensor& parameter) const;
  bool all_fresh() const;  // of all parameters, though the copy may be gone
  void start_gather();
  void finish_gather();
  // What did not come whole serves nobody.
  void abandon_gather();
  void drop();
  // Drops all but this rank's share among its neighbours (reshard_after_forward = a number).
  void reshard_after_forward_to_mesh();
  bool has_post_forward_mesh() const { return post_forward_ranks.size() > 1; }

  // Whether its axes have more than one rank, or memory: else there is nothing to gather, nor anything to wait for.
  bool has_work() const;
  bool frozen() const;
  bool all_used() const;
  bool complete() const;  // every expected gradient is there
  std::vector<at::Tensor> local_parts() const;

  const DeviceMesh mesh, storage_mesh;  // where is computed; where parameters, gradients and states are kept
  const FsdpOptions options;
  const fsdp::Axes axes;
  std::vector<fsdp::Parameter> parameters;
  std::int64_t flat_bytes = 0;
  bool reshards = true;
  Communicator all_gather_comm, reduce_scatter_comm,
      post_forward_comm;                // on the shard axes; the last over neighbours alone
  Communicator all_reduce_comm;         // on the replicate axis, if there is one
  std::vector<int> post_forward_ranks;  // this rank's, on the shard axes

  at::Tensor flat, post_forward_shard;  // bytes: the gathered copy; this rank's part of it while it is shrunk
  at::Tensor freed_buffer;  // the copy before without its memory, of which the parameters' views serve again
  Work work;
  std::vector<at::Tensor> inputs;  // of the gather under way

  std::shared_ptr<fsdp::Schedule> schedule;
  std::int64_t uses = 0;                                        // of the gathered copy, in this phase
  std::array<fsdp::UseCounts, fsdp::kPassKinds> recorded = {};  // how many there were
  // The uses in this backward pass up to each time that it was dropped although nothing told that it was through. They
  // are recorded where there was one such time: then those were all.
  std::vector<std::int64_t> implicit_reshard_uses;
  bool warned = false;                   // that its param_dtype has no effect
  bool prefetched = false;               // gathered, but not used yet
  std::vector<const at::Tensor*> slots;  // where its list had parameters, those of other units too; never followed
  bool on_other_mesh = false;            // made for parameters that were put on a mesh of their own (experts)
  bool pinned = false;                   // by unshard(): release() keeps the copy
  // Calls on a rank's own data (local_data_call.h): how many are under way, in forward or backward; those in backward.
  int active_calls = 0;
  std::vector<std::shared_ptr<fsdp::LocalCall>> calls_in_backward;
  bool unsharded_in_module =
      false;                       // their graphs refer to the memory: it is emptied for all of them, and filled again
  bool aliased_by_output = false;  // a result shares the memory, which then stays with it
  bool kept_for_graph = false;     // by a backward pass that made a graph, until one that makes none
  bool reshards_after_backward = true;
  bool requires_gradient_sync = true, requires_all_reduce = true;  // as NoGradientSync and NoReplicaSync, for this unit
  std::optional<double> divide_factor;  // of gradients of such calls; default: the number of ranks
  int pending_pass = -1;                // backward pass of the first pending gradient
  // In this pass: gradients that came, reductions. How many must come before they are reduced, where the pass before
  // reduced more than once (several recomputed segments); 0: as soon as the expected ones are there.
  std::int64_t arrivals = 0, reductions = 0, expected_arrivals = 0;

 private:
  void place_in_flat();
  void make_communicators();
  void make_views();
  void allocate_flat_buffer();
  bool holds_views_alone() const;
  at::Tensor shard_on_device(const fsdp::Parameter& p, const at::Tensor& tensor) const;
  void gather_shards();
  void gather_post_forward_shards();
  std::vector<at::Tensor> post_forward_shards_of(const at::Tensor& bytes) const;
};

namespace fsdp {

// The param_dtype of a parameter; none: it is computed with in its own dtype.
std::optional<at::ScalarType> param_dtype_of(const MixedPrecision& precision, const std::string& name,
                                             at::ScalarType own);

// A parameter of a unit.
struct UnitParameter {
  std::shared_ptr<FsdpUnit::Impl> unit;
  std::size_t k;
  Parameter& parameter() const { return unit->parameters[k]; }
};

// Where a tensor is a parameter; no unit: nowhere.
UnitParameter find_unit_parameter(const at::Tensor& tensor);
// The unit of a parameter, and its place there; null: none.
FsdpUnit::Impl* unit_of(const at::Tensor& tensor, std::size_t& k);

}  // namespace fsdp
}  // namespace dtensor
