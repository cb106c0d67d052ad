// One FSDP unit: parameters that are gathered together, and their gathered copy. The schedule decides when it is
// gathered and freed.
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
#include "internal/gather_extension.h"
#include "internal/gradient_reduction.h"
#include "internal/ranks/named_calls.h"
#include "parallel/fsdp/parameter_shards.h"

namespace dtensor::fsdp {

class ExtendedGather;
class LocalModuleCall;
class Schedule;

enum PassKind : std::uint8_t { kForward, kBackward, kInference, kPassKinds };

// How often a unit was used in each of the last passes. Microbatches of other sizes may use it more or less often.
class UseCounts {
 public:
  bool none() const { return passes_ == 0; }
  void note(std::int64_t uses) { last_[passes_++ % last_.size()] = uses; }
  // Whether a pass may end after `uses` uses: a recent pass had as many, or all had fewer.
  bool may_be_all(std::int64_t uses) const {
    const auto known = last_.begin() + static_cast<std::ptrdiff_t>(std::min(passes_, last_.size()));
    return std::find(last_.begin(), known, uses) != known || uses >= *std::max_element(last_.begin(), known);
  }

 private:
  std::array<std::int64_t, 16> last_ = {};
  std::size_t passes_ = 0;
};

// Mesh and placements of a parameter on axes other than its unit's (tensor parallelism); no mesh if there are none.
struct TensorParallelAxes {
  DeviceMesh mesh;
  Placements placements;
};

struct Parameter {
  std::string name;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  Weak tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  Placements sharded_placements, unsharded_placements,
      gradient_placements;  // as stored, in computation, and of the reduced gradient
  Shape sizes, strides;     // global
  DeviceMesh storage_mesh;  // the mesh of its storage
  TensorParallelAxes tp_axes;
  at::ScalarType dtype;
  std::optional<at::ScalarType> param_dtype;  // applies even if the parameter is converted later
  bool sharded = false;                       // over more than one rank, so it has to be gathered
  bool in_flat_buffer = false;                // in the gathered copy: sharded, or in host memory
  ParameterLayout layout, shard;  // if in_flat_buffer: layouts of the gathered tensor and of this rank's shard
  std::int64_t offset = 0;        // in the unit's flat buffer, in elements of gather_dtype
  std::shared_ptr<ExtendedGather> extended;  // instead of the flat buffer: an extension says what is gathered

  at::Tensor full;                 // the gathered tensor: a view of the flat buffer
  std::vector<at::Tensor> pieces;  // views of `full` by rank: outputs of the gather
  std::uint64_t generation = 0;    // generation of the parameter when it was gathered
  bool used = false;               // since it was gathered
  bool used_globally = false;      // with DTensors and a graph, since the last pass that reduced
  bool has_global_parts = false;   // its unreduced gradient may have parts of such uses before that pass
  bool gradient_expected = false;  // used with a graph, so a gradient will arrive
  bool gradient_arrived = false;   // in this pass
  bool had_gradient = false;       // in the last pass that reduced gradients of the unit
  at::Tensor pending_gradient;     // its unreduced gradient
  UnsynchronizedGradient earlier;  // set if that consists only of what NoGradientSync left
  // Generation of a parameter that came from the meta device, until it is initialized.
  std::optional<std::uint64_t> uninitialized_generation;

  // Whether the unit gathers it.
  bool is_gathered() const { return in_flat_buffer || extended != nullptr; }
  void forget_gathered();  // the gathered tensors: others may refer to them
  at::ScalarType gather_dtype() const { return param_dtype.value_or(dtype); }
  // Whether the gathered copy can be used for computation in a dtype. A copy in another dtype than the parameter's
  // serves only that dtype.
  bool serves(at::ScalarType asked) const { return gather_dtype() == dtype || gather_dtype() == asked; }
  // Throws if it came from the meta device and has not been initialized.
  void check_initialized(const DTensor& parameter) {
    if (C10_UNLIKELY(uninitialized_generation.has_value())) throw_uninitialized(parameter);
  }
  at::Tensor lock() const;  // undefined if it was freed
  // Whether it has the placements and layout that it had when it joined the unit. If its owner has changed them, the
  // unit neither gathers it nor serves it.
  bool has_original_layout(const DTensor& parameter);

 private:
  void throw_uninitialized(const DTensor& parameter);

  std::uint64_t compared_generation_ = UINT64_MAX;  // generation of the parameter at the last comparison
  bool has_original_layout_ = false;
};

// Bytes of the local tensor; 0 of an undefined tensor.
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
  bool gathers() const;  // whether there is anything to gather
  bool is_gathered() const { return flat.defined(); }
  // Bytes of this rank's share of the gathered copy between forward and backward; bytes of all copies.
  std::int64_t kept_shard_bytes() const { return post_forward_shard.defined() ? post_forward_shard.numel() : 0; }
  std::int64_t held_bytes() const { return kept_shard_bytes() + (is_gathered() ? gathered_bytes() : 0); }
  std::int64_t gathered_bytes() const;
  std::int64_t post_forward_shard_bytes() const;  // size of the largest share among the neighbors
  // Whether the gathered copy of a parameter is up to date.
  bool is_fresh(const fsdp::Parameter& p, const DTensor& parameter) const;
  bool all_fresh() const;  // ignores whether the copy still exists
  // Asks the extensions of parameters for their contributions; before start_gather().
  void prepare_gather();
  void start_gather();
  void finish_gather();
  // Frees an incomplete gathered copy and its views.
  void reshard_after_failed_gather();
  // Frees the gathered copy. Its views are reused by the next gather if no other tensor shares its memory.
  void reshard();
  // Frees all but this rank's share among its neighbors (reshard_after_forward = a number).
  void reshard_to_post_forward_mesh();
  void set_extension(std::size_t k, GatherExtension extension);
  bool shares_gathered_memory(const at::Tensor& tensor) const;
  bool has_post_forward_mesh() const { return post_forward_ranks.size() > 1; }

  // Number of ranks over which gradients are reduced.
  std::int64_t data_parallel_ranks() const;
  // Whether its axes have more than one rank or it is offloaded: otherwise nothing is gathered and no gradient is
  // reduced.
  bool has_work() const;
  // Placements of this rank's contribution to a gradient with local semantics, which replace those of the unit's axes:
  // an average, or, of contributions that were divided by the divide factor, a sum.
  Placements contribution_placements(Placements placements) const;
  // The gradient of a parameter that is not reduced over all axes of the unit; undefined: none.
  at::Tensor unreduced_gradient(const fsdp::Parameter& p) const;
  bool frozen() const;
  bool all_used() const;
  bool complete() const;  // every expected gradient has arrived
  std::vector<at::Tensor> local_parts() const;
  std::string str() const;  // unit 3 ('a.weight' and 2 more)
  // The name of the collectives for the gradients of these parameters.
  const NamedCallScope::Name& name_reduction(const std::vector<const fsdp::Parameter*>& reduced);

  const DeviceMesh mesh, storage_mesh;  // of the computation; of parameters, gradients and states
  const FsdpOptions options;
  const fsdp::Axes axes;
  std::vector<fsdp::Parameter> parameters;
  std::int64_t flat_bytes = 0;
  bool reshards = true;
  Communicator all_gather_comm, reduce_scatter_comm,
      post_forward_comm;                // over the shard axes; the last over neighbors only
  Communicator all_reduce_comm;         // over the replicate axis, if there is one
  std::vector<int> post_forward_ranks;  // this rank and its neighbors on the shard axes
  std::uint64_t number = 0;             // among the units of the mesh

  at::Tensor flat, post_forward_shard;  // bytes: the gathered copy; this rank's share between forward and backward
  at::Tensor freed_buffer;              // the previous copy without memory: its views in `parameters` are reused
  Work work;
  std::vector<at::Tensor> inputs;  // of the active gather

  std::shared_ptr<fsdp::Schedule> schedule;
  std::int64_t uses = 0;                                        // of the gathered copy in this phase
  std::array<fsdp::UseCounts, fsdp::kPassKinds> recorded = {};  // uses in previous phases
  // The uses in this backward pass at each reshard that neither gradients nor recorded uses triggered
  // (ends_implicitly). If there was only one, its count is recorded.
  std::vector<std::int64_t> implicit_reshard_uses;
  bool warned = false;                   // warned that param_dtype has no effect
  bool prefetched = false;               // gathered, but not used yet
  std::vector<const at::Tensor*> slots;  // addresses of all entries of its list; never dereferenced
  bool on_other_mesh = false;            // its parameters have a mesh of their own (experts)
  bool has_module = false;               // made of a module, whose calls have a hook
  bool pinned = false;                   // by unshard(): reshard_if_unused() does not free the copy
  // Active calls with local semantics (local_module_call.h) in forward or backward; those in backward.
  int active_calls = 0;
  std::vector<std::shared_ptr<fsdp::LocalModuleCall>> calls_in_backward;
  bool unsharded_in_module = false;  // graphs of calls refer to the memory, so its storage is emptied and refilled
  bool aliased_by_output = false;    // a module output shares the memory, which must not be emptied
  bool kept_for_graph = false;       // from a pass with create_graph to one without
  bool reshards_after_backward = true;
  bool requires_gradient_sync = true, requires_all_reduce = true;  // false: as NoGradientSync, NoReplicaSync
  std::optional<double> divide_factor;  // of gradients with local semantics; default: the number of ranks
  bool reduces_unused = false;          // zeros for parameters without a gradient on this rank
  bool reduced_in_pass = false;
  int pending_pass = -1;  // backward pass of the first pending gradient
  // Gradients that arrived and reductions in this pass. If the previous pass reduced more than once (several recomputed
  // segments), expected_arrivals gradients must arrive before a reduction; 0: all expected ones.
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

  NamedCallScope::Name gather_, last_reduction_;
  std::vector<const fsdp::Parameter*> last_reduced_;  // by last_reduction_
};

namespace fsdp {

// The param_dtype of a parameter; without a value, it is computed in its own dtype.
std::optional<at::ScalarType> param_dtype_of(const MixedPrecision& precision, const std::string& name,
                                             at::ScalarType own);

// A parameter of a unit.
struct UnitParameter {
  std::shared_ptr<FsdpUnit::Impl> unit;
  std::size_t k;
  Parameter& parameter() const { return unit->parameters[k]; }
};

// Unit and index of a tensor that is a parameter; no unit if it is not.
UnitParameter find_unit_parameter(const at::Tensor& tensor);
// The unit of a parameter, and its index there; null: none.
FsdpUnit::Impl* unit_of(const at::Tensor& tensor, std::size_t& k);

}  // namespace fsdp
}  // namespace dtensor
