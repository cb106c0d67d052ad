// Fully sharded parameters with a schedule: parameters are stored split over the ranks of one mesh axis, gathered unit
// by unit for forward and again for backward in one collective each, and their gradients are reduced back in one. The
// model stays as it was written for one device. See docs/design/fsdp.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/named_tensors.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Dtypes of the computation; parameters, gradients and optimizer states keep the dtype that the parameter was made in.
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype = {};  // parameters are gathered and computed with in it (see ComputeScope)
  std::optional<at::ScalarType> reduce_dtype =
      {};  // gradients are summed over ranks in it; default: the parameter's own
  std::optional<at::ScalarType> output_dtype = {};  // of ComputeScope::output
  // Other param_dtypes for names that match a pattern ("*" stands for anything); the first match counts. fp32 norms in
  // a bf16 model: {{"*ln*", at::kFloat}}.
  std::vector<std::pair<std::string, at::ScalarType>> param_dtype_of = {};
};

// How a unit is split, gathered and reduced.
struct FsdpOptions {
  // true: gathered parameters are dropped after their last use in forward and gathered again in backward, but for those
  // that backward begins with. false: they stay until backward ends. A number: in between each rank keeps its share
  // among that many neighbours on the shard axis (a divisor of its size), so that backward gathers over those alone.
  std::variant<bool, std::int64_t> reshard_after_forward = true;
  MixedPrecision precision = {};
  // How many bytes of gathered parameters may wait for their use, ahead of the unit in use, in the order recorded in
  // the step before. Default: the next unit where collectives run in the background, none where they do not.
  std::optional<std::int64_t> prefetch_bytes = {};
  // Names of mesh axes. A 1-D mesh needs no names; of a 2-D mesh without names, the first replicates.
  std::string shard_axis = "shard", replicate_axis = "replicate";
  // Further axes that parameters are split over, in turn after the shard axis: those on which ranks differ in their
  // activations only (the axis of a sequence's parts). A unit's collectives run over all these axes at once.
  std::vector<std::string> more_shard_axes = {};
  // The dimension that a parameter is split along; default 0. Tensors of no dimensions are whole on every rank.
  std::function<std::int64_t(const std::string& name, const at::Tensor& parameter)> shard_dim = {};
  // Consecutive elements along that dimension that no rank's part may divide: rows of a quantisation or preconditioner
  // block; default 1. The parameter is then a RaggedShard.
  std::function<std::int64_t(const std::string& name, const at::Tensor& parameter)> shard_block = {};
  // Parameters, gradients and with them optimizer states are kept in host memory (DeviceMesh::offloaded); shards are
  // copied to the device and gathered there, reduced gradients are copied back. Not differentiable twice. Where the
  // mesh is of CPUs that is so anyway.
  bool cpu_offload = false;
};

// Counted since the first unit of a model was made, on this rank, over all its units.
struct FsdpStats {
  // Collectives.
  std::int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
  std::int64_t gathered_bytes = 0, peak_gathered_bytes = 0;    // gathered parameters
  std::int64_t unreduced_bytes = 0, peak_unreduced_bytes = 0;  // gradients that wait for their unit's
};

// A set of parameters that is gathered and reduced together. A cheap handle; the unit lives as long as its parameters.
class DTENSOR_API FsdpUnit {
 public:
  struct Impl;
  explicit FsdpUnit(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // Names of its parameters, and how it was made.
  std::vector<std::string> names() const;
  const FsdpOptions& options() const;
  std::int64_t shard_bytes() const;       // of the parameters, on this rank
  std::int64_t gathered_bytes() const;    // of its gathered copy, in the dtypes that are gathered
  std::int64_t kept_shard_bytes() const;  // of that, between forward and backward, where neighbours keep shares
  std::int64_t gradient_bytes() const;    // of its unreduced gradients
  // Gathers the parameters, in the background where the backend can, and keeps them until reshard(): for schedules of
  // the caller's own (a pipeline's UNSHARD and RESHARD). A copy that is there and up to date is kept without a gather.
  void unshard() const;
  void reshard() const;  // drops the gathered copy, if there is one
  // false: backward passes leave this unit's gradients unreduced (over replicas alone), as under NoGradientSync
  // (NoReplicaSync); the next pass that reduces takes them along.
  void set_requires_gradient_sync(bool on) const;
  void set_requires_all_reduce(bool on) const;
  // Whether the gathered copy is dropped after forward (FsdpOptions::reshard_after_forward), and after backward.
  void set_reshard_after_forward(bool on) const;
  void set_reshard_after_backward(bool on) const;
  // What gradients of calls on the ranks' own data are divided by; default: the number of ranks (an average).
  void set_gradient_divide_factor(double factor) const;
  FsdpStats stats() const;
  void reset_peaks() const;

 private:
  Impl& impl() const;  // throws where this was moved from

  std::shared_ptr<Impl> impl_;
};

namespace fsdp {
class LocalCall;
}

// One call of a module on this rank's own data, with regular tensors in the place of its parameters: the module
// computes with plain ATen, and gradients of the parameters are averages over the shard and replicate axes. Gathers the
// units of the parameters (collective); backward gathers them again when it reaches the outputs.
class DTENSOR_API FsdpCall {
 public:
  // Called with true when a backward pass reaches the module, with false when it has all gradients of the parameters.
  using OnBackward = std::function<void(bool inside)>;

  // Parameters of units are lent. Others stay as they are, and so do those that were put on a mesh of their own before
  // fully_shard (experts).
  // `inputs` of the module: where backward leaves a call whose parameters get no gradients.
  explicit FsdpCall(at::TensorList parameters, at::TensorList inputs = {}, OnBackward on_backward = {});
  ~FsdpCall();  // finishes without outputs: the module threw
  FsdpCall(const FsdpCall&) = delete;
  FsdpCall& operator=(const FsdpCall&) = delete;

  // For each parameter the gathered one: a regular tensor in the dtype that the unit computes with. Where the parameter
  // is placed on axes besides the unit's (tensor parallelism), a DTensor of their mesh.
  const std::vector<at::Tensor>& tensors() const;
  // More of what the module gives, before it is left.
  void watch(at::TensorList outputs);
  // The module is left, and the units are resharded. `outputs`: what it gives, from where backward comes. `keep`:
  // nothing else is called before backward, which begins with these units.
  void finish(at::TensorList outputs, bool keep = false);

 private:
  std::shared_ptr<fsdp::LocalCall> call_;
  bool finished_ = false;
};

// Makes one unit of those parameters that are in none yet, and joins its schedule with theirs: call it for each block,
// then for the whole model. `mesh` has the shard axis, perhaps the replicate axis (HSDP), and any axes that parameters
// are placed on already (tensor parallelism). Of the parameters,
//  - plain ones, equal on all ranks, are replaced by DTensors that hold this rank's part (`requires_grad` stays);
//  - those on the meta device get memory for their part only, filled with NaN until the caller resets them;
//  - DTensors on `mesh` or a slice of it keep their placements on the other axes and are re-placed where they are, for
//    every handle; the shard axis splits what those axes leave (a strided shard where they split the same dimension).
//  - DTensors on another arrangement of these ranks, or some of them (experts), get a unit of their own there, first:
//    along the axis on which they are stored split, or a 1-D mesh on which they are whole. With no such axis they stay.
// A tensor that is listed twice counts once, under its first name; so does a plain one that an earlier call replaced
// under another name of the list. Ranks outside the mesh take part in nothing.
DTENSOR_API FsdpUnit fully_shard(const NamedTensors& parameters, const DeviceMesh& mesh,
                                 const FsdpOptions& options = {});

// What call() does around forward().
class DTENSOR_API ModuleCall {
 public:
  ModuleCall(const NamedTensors& parameters, at::TensorList inputs);
  ~ModuleCall();
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  void leave(at::TensorList outputs);  // after forward(), with its results

 private:
  struct State;
  struct CallSemantics;
  std::unique_ptr<State> state_;  // null: global semantics
  std::shared_ptr<const void> scope_;
  bool outermost_ = false;
};

// module.forward(inputs...), for units that are called on this rank's own data. Where an input is a DTensor, that is
// all (global semantics). Where none is, the module's parameters are regular tensors while it runs (see FsdpCall). The
// outermost call decides for those within it, so call the module of each unit by this function. Inputs and results are
// tensors or vectors of tensors; other inputs are passed on. The module must live until backward is over.
template <class Module, class... Inputs>
requires requires(Module& m) { m.named_parameters(); }
auto call(Module& module, const Inputs&... inputs) {
  std::vector<at::Tensor> given;
  const auto add = [&given](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_convertible_v<const Value&, at::Tensor>) given.push_back(value);
    if constexpr (std::is_same_v<Value, std::vector<at::Tensor>>) given.insert(given.end(), value.begin(), value.end());
  };
  (add(inputs), ...);
  ModuleCall scope(module.named_parameters(), given);
  auto result = module.forward(inputs...);
  given.clear();
  add(result);
  scope.leave(given);
  return result;
}

// A model that lists its parameters: an nn::Module, or a torch::nn::Module, which hands out copies of its handles, so
// that its tensors cannot be exchanged: it must have been built in a MeshScope (on this mesh), and is re-placed in
// place.
template <class Model>
requires requires(Model& m) { m.named_parameters(); }
FsdpUnit fully_shard(Model& model, const DeviceMesh& mesh, const FsdpOptions& options = {}) {
  if constexpr (requires { NamedTensors(model.named_parameters()); }) {
    return fully_shard(NamedTensors(model.named_parameters()), mesh, options);
  } else {
    std::vector<std::pair<std::string, at::Tensor>> handles;
    for (const auto& item : model.named_parameters()) handles.emplace_back(item.key(), item.value());
    NamedTensors list;
    for (auto& [name, tensor] : handles) {
      TORCH_CHECK(is_dtensor(tensor), "fully_shard: parameter '", name, "' is a plain tensor, and this kind of module ",
                  "does not let it be exchanged; build the module in a MeshScope of ", mesh.str());
      list.emplace_back(name, &tensor);
    }
    return fully_shard(list, mesh, options);
  }
}

// While it lives, each slot of the list that holds a parameter with another param_dtype holds its cast instead, so that
// plain ATen code computes in that dtype; gradients reach the parameter in its own. Put the forward pass in it: without
// one a param_dtype has no effect but a warning. Belongs to this thread; what checkpoint() runs again in backward runs
// in the scopes that it was recorded in.
class DTENSOR_API ComputeScope {
 public:
  explicit ComputeScope(const NamedTensors& parameters);
  ~ComputeScope();
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;

  at::Tensor output(const at::Tensor& result) const;  // in output_dtype, where one was given

 private:
  struct State;
  using StatePtr = std::shared_ptr<const State>;
  ComputeScope() = default;
  void open(StatePtr state);
  void enter(const State& state);
  static std::shared_ptr<const void> reopen(const std::shared_ptr<const void>& state);

  std::vector<std::pair<at::Tensor*, at::Tensor>> kept_;
  std::optional<at::ScalarType> output_dtype_;
  std::shared_ptr<const void> scope_;
};

// For this thread, while it lives: backward reduces gradients over the shard axis only and leaves the sum over replicas
// to the next pass without it (HSDP with gradient accumulation). NoGradientSync leaves both.
class DTENSOR_API NoReplicaSync {
 public:
  NoReplicaSync();
  // Whether one lives on this thread.
  static bool current();

  struct Flag {};

 private:
  std::shared_ptr<const void> scope_;
};

// The units that the parameters are in, each once, in the order of the list.
DTENSOR_API std::vector<FsdpUnit> units_of(at::TensorList parameters);

// Brings the gradients that backward passes under NoGradientSync left unreduced to their parameters' placements, as a
// pass without it would: unit by unit for parameters of a unit, the others together. Gradients that are reduced, and
// parameters without one, are left alone. Collective: every rank of the parameters' meshes gives the same list.
DTENSOR_API void reduce_gradients(at::TensorList parameters);

// Bytes on this rank at the worst moment of a training step, but for activations.
struct FsdpMemory {
  std::int64_t parameters = 0;  // shards
  std::int64_t gradients = 0;   // shards, one set
  std::int64_t optimizer = 0;   // shards, states_per_parameter sets
  std::int64_t gathered = 0;    // units in flight: the unit in use, what is prefetched and what is kept
  std::int64_t unreduced = 0;   // the gradients of one unit
  // The sum of all.
  std::int64_t total() const { return parameters + gradients + optimizer + gathered + unreduced; }
};
// `units` in the order of their use; the last one holds what is used at the beginning and at the end of a step.
DTENSOR_API FsdpMemory predict_memory(const std::vector<FsdpUnit>& units, int states_per_parameter = 2);

}  // namespace dtensor
