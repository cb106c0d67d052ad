// Fully sharded data parallelism (FSDP): parameters are stored sharded over the ranks of one mesh axis. One collective
// gathers a unit for forward, and one for backward; one collective reduces its gradients. The model stays as it was
// written for one device. See docs/design/fsdp.md.
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
#include "dtensor/nn/module.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Dtypes of the computation. Parameters, gradients and optimizer states keep the parameter's original dtype.
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype = {};   // dtype of gathered parameters in computation (see ComputeScope)
  std::optional<at::ScalarType> reduce_dtype = {};  // dtype in which gradients are reduced; default: the parameter's
  std::optional<at::ScalarType> output_dtype = {};  // dtype of the results of the outermost call
  // Other param_dtypes for names that match a pattern ("*" matches anything); the first match applies. Norms in fp32 in
  // a bf16 model: {{"*ln*", at::kFloat}}.
  std::vector<std::pair<std::string, at::ScalarType>> param_dtype_of = {};
  bool cast_forward_inputs = true;  // floating-point inputs of a call are cast to param_dtype
};

// How a unit is sharded, gathered and reduced.
struct FsdpOptions {
  // true: gathered parameters are freed after their last use in forward and gathered again in backward, except those
  // that backward uses first. false: they are kept until backward ends. A number: between forward and backward each
  // rank keeps its share among that many neighbors on the shard axis (a divisor of its size), and backward gathers
  // over them.
  std::variant<bool, std::int64_t> reshard_after_forward = true;
  MixedPrecision precision = {};
  // Limit for bytes of parameters that are gathered ahead of the current unit, in the order recorded in the previous
  // step. Default: the next unit if collectives run in the background, otherwise none.
  std::optional<std::int64_t> prefetch_bytes = {};
  // Names of mesh axes. A 1-D mesh needs no names; without names, the first axis of a 2-D mesh replicates. Of several
  // shard axes, those after the first are axes whose ranks differ only in their activations (context parallelism). The
  // collectives of a unit run over all of them at once.
  std::vector<std::string> shard_axes = {"shard"};
  std::string replicate_axis = "replicate";
  // The dimension along which a parameter is sharded; default 0. Tensors without dimensions are replicated.
  std::function<std::int64_t(const std::string& name, const at::Tensor& parameter)> shard_dim = {};
  // Consecutive elements along that dimension that must stay on one rank, such as rows of a quantization or
  // preconditioner block; default 1. The parameter is then a RaggedShard.
  std::function<std::int64_t(const std::string& name, const at::Tensor& parameter)> shard_block = {};
  // Keeps parameters, gradients and therefore optimizer states in host memory (DeviceMesh::offloaded). Shards are
  // copied to the device before they are gathered, reduced gradients are copied back. Excludes double backward. On a
  // mesh of CPUs it only costs copies.
  bool cpu_offload = false;
};

// Counters of this rank over all units of a model, since its first unit was created.
struct FsdpStats {
  // Number of collectives.
  std::int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
  std::int64_t gathered_bytes = 0, peak_gathered_bytes = 0;    // gathered parameters
  std::int64_t unreduced_bytes = 0, peak_unreduced_bytes = 0;  // gradients not reduced yet
};

// A set of parameters that is gathered and reduced together. A handle that is cheap to copy; the unit lives as long as
// its parameters.
class DTENSOR_API FsdpUnit {
 public:
  struct Impl;
  explicit FsdpUnit(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // Names of its parameters, and the options that it was created with.
  std::vector<std::string> names() const;
  const FsdpOptions& options() const;
  std::int64_t shard_bytes() const;       // bytes of this rank's shards
  std::int64_t gathered_bytes() const;    // bytes of the gathered parameters, in their gathered dtypes
  std::int64_t kept_shard_bytes() const;  // bytes kept between forward and backward if neighbors keep shares
  std::int64_t gradient_bytes() const;    // bytes of its unreduced gradients
  // Gathers the parameters, in the background if the backend can, and keeps them until reshard(). For custom schedules
  // (UNSHARD and RESHARD of a pipeline). An up-to-date gathered copy is reused.
  void unshard() const;
  void reshard() const;  // frees the gathered copy, if there is one
  // With false, backward passes do not reduce this unit's gradients (or not over replicas), as under NoGradientSync
  // (NoReplicaSync). The next pass that reduces includes them.
  void set_requires_gradient_sync(bool on) const;
  void set_requires_all_reduce(bool on) const;
  // Whether the gathered copy is freed after forward (FsdpOptions::reshard_after_forward), and after backward.
  void set_reshard_after_forward(bool on) const;
  void set_reshard_after_backward(bool on) const;
  // Divisor of gradients of calls with local semantics; default: the number of ranks (an average). It also applies to
  // gradients that passes without synchronization left unreduced.
  void set_gradient_divide_factor(double factor) const;
  // With true, each pass reduces every parameter that requires a gradient, with zeros where this rank has none. Set it
  // on every rank if the ranks' data decides which parameters of the unit they use.
  void set_reduce_scatter_unused_params(bool on) const;
  FsdpStats stats() const;
  void reset_peaks() const;

 private:
  Impl& impl() const;  // throws if this was moved from

  std::shared_ptr<Impl> impl_;
};

// Creates one unit of those parameters that are in no unit yet, and adds it to the schedule of their model: call it for
// each block, then for the entire model. `mesh` has the shard axis, optionally the replicate axis (HSDP), and any axes
// over which parameters are already distributed (tensor parallelism).
//  - Regular tensors, equal on all ranks, are replaced by DTensors that store this rank's shard and keep requires_grad.
//  - Tensors on the meta device get memory for their shard only, filled with NaN until the caller resets them.
//  - DTensors on `mesh` or a slice of it keep their placements on the other axes and are redistributed in place, so
//    every handle sees it. The shard axis splits what those axes leave (a strided shard if they split the same
//    dimension).
//  - DTensors on another arrangement of these ranks, or of some of them (experts), first get a unit of their own there:
//    along the axis that shards their storage, or along a 1-D mesh that replicates them. Without such an axis they are
//    not changed.
// A tensor that is listed twice counts once, under its first name; likewise a regular tensor that an earlier call
// replaced under another name of the list. Ranks outside the mesh take no part.
DTENSOR_API FsdpUnit fully_shard(const NamedTensors& parameters, const DeviceMesh& mesh,
                                 const FsdpOptions& options = {});

// Shards the module's parameters, and registers a hook (nn::Module::register_call_hook) that gives each call of the
// module its semantics, its dtypes and the end of its unit.
DTENSOR_API FsdpUnit fully_shard(nn::Module& module, const DeviceMesh& mesh, const FsdpOptions& options = {});

namespace detail {

// Runs forward(), which returns the tensors among its results, as one call of the module with these parameters.
DTENSOR_API void run_module_call(const NamedTensors& parameters, at::TensorList inputs,
                                 const std::function<std::vector<at::Tensor>()>& forward);

}  // namespace detail

// A call of a module without a call operator. Runs module.forward(inputs...) with local semantics; with global
// semantics if an input is a DTensor. With local semantics the module's parameters are regular tensors during the call.
// The outermost call decides for nested calls, so call the module of each unit. Inputs and results are tensors or
// vectors of tensors; other inputs are forwarded unchanged. The module must live until backward ends.
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
  const auto forward = [&] {
    if constexpr (std::is_base_of_v<nn::Module, Module>) return nn::detail::call_module(module, inputs...);
    if constexpr (!std::is_base_of_v<nn::Module, Module>) return module.forward(inputs...);
  };
  std::optional<std::decay_t<decltype(forward())>> result;
  detail::run_module_call(module.named_parameters(), given, [&] {
    result.emplace(forward());
    given.clear();
    add(*result);
    return given;
  });
  return *std::move(result);
}

// For a model that lists its parameters: an nn::Module, or a torch::nn::Module. The latter returns copies of tensor
// handles, so its tensors cannot be replaced: build it in a MeshScope (on this mesh). Its parameters are redistributed
// in place.
template <class Model>
requires requires(Model& m) { m.named_parameters(); }
FsdpUnit fully_shard(Model& model, const DeviceMesh& mesh, const FsdpOptions& options = {}) {
  if constexpr (std::is_base_of_v<nn::Module, Model>) {
    return fully_shard(static_cast<nn::Module&>(model), mesh, options);
  } else if constexpr (requires { NamedTensors(model.named_parameters()); }) {
    return fully_shard(NamedTensors(model.named_parameters()), mesh, options);
  } else {
    std::vector<std::pair<std::string, at::Tensor>> handles;
    for (const auto& item : model.named_parameters()) handles.emplace_back(item.key(), item.value());
    NamedTensors list;
    for (auto& [name, tensor] : handles) {
      TORCH_CHECK(is_dtensor(tensor), "fully_shard: parameter '", name, "' is a regular tensor, which cannot be ",
                  "replaced in this kind of module; build the module in a MeshScope of ", mesh.str());
      list.emplace_back(name, &tensor);
    }
    return fully_shard(list, mesh, options);
  }
}

// During its lifetime, each list entry whose parameter has another param_dtype holds the cast parameter, so that
// regular ATen code computes in that dtype. Gradients reach the parameter in its own dtype. A call of a module that
// fully_shard() was given opens one; for lists of tensors, run the forward pass inside it: without a scope, param_dtype
// has no effect except a warning. The results of calls within an open scope get no output_dtype. Scopes are
// thread-local. checkpoint() recomputes in the scopes of its forward pass.
class DTENSOR_API ComputeScope {
 public:
  // A recomputation writes to the list's entries after the scope has ended: `owner` keeps them alive. Without an owner,
  // they must live as long as the graph, as members of a module do.
  explicit ComputeScope(const NamedTensors& parameters, std::shared_ptr<const void> owner = nullptr);
  ~ComputeScope();
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;

  at::Tensor output(const at::Tensor& result) const;  // cast to output_dtype, if it is set
  static bool current();                              // whether one is open on this thread

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

// During its lifetime on this thread, backward reduces gradients over the shard axis only. The next pass without it
// sums them over replicas (HSDP with gradient accumulation). NoGradientSync defers both.
class DTENSOR_API NoReplicaSync {
 public:
  NoReplicaSync();
  // Whether one is active on this thread.
  static bool current();

  struct Flag {};

 private:
  std::shared_ptr<const void> scope_;
};

// The units of the parameters, each once, in the order of the list.
DTENSOR_API std::vector<FsdpUnit> units_of(at::TensorList parameters);

// Reduces the gradients that backward passes under NoGradientSync left unreduced, as a pass without it would:
// parameters of a unit unit by unit, the others together. Reduced gradients and parameters without a gradient are not
// changed. Collective: every rank of the parameters' meshes passes the same list.
DTENSOR_API void reduce_gradients(at::TensorList parameters);

}  // namespace dtensor
