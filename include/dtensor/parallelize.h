// Tensor and sequence parallelism by a plan: patterns over a model's names select how each parameter and activation is
// split along one mesh axis. The model stays as it was written for one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/nn.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Redistributes x to `placements` (one per axis of its mesh), and its gradient back to the placements of x (Replicate
// where those are Partial). The communication happens at this point, so a sum of partial gradients is reduced once.
DTENSOR_API at::Tensor constrain(const at::Tensor& x, const Placements& placements);
// The same for one axis; the other axes keep their placements.
DTENSOR_API at::Tensor constrain(const at::Tensor& x, const std::string& axis, Placement placement);
// A named activation point: applies the entry of the current plan (ParallelModel::Scope) for that name, prefixed by the
// path of the enclosing ModuleScopes. Returns x where no entry matches.
DTENSOR_API at::Tensor constrain(const char* point, const at::Tensor& x);

// Styles. `in` and `out` are placements on the plan's axis of a module's first input and of its output. Without a
// value, the tensor keeps its placement.

// Splits every parameter of the module, bias included, by output features (nn::Module::output_dim). A parameter that is
// matched by its own name is split along dimension 0.
struct ColwiseParallel {
  // Placements of the first input and of the output.
  std::optional<Placement> in = Replicate();
  std::optional<Placement> out = {};
  // Consecutive features that must stay on one rank (a head, a group of heads). Each rank gets
  // ceil(blocks / ranks) blocks, the last ranks fewer or none (BlockShard).
  std::int64_t block = 1;
};
// Splits parameters by input features (dimension 1; rows of an nn::Embedding); a parameter without that dimension (a
// bias) is Replicate. The result is a partial sum, reduced to `out`.
struct RowwiseParallel {
  // Placements of the first input and of the output.
  std::optional<Placement> in = {};
  std::optional<Placement> out = Replicate();
  std::int64_t block = 1;  // consecutive input features that must stay on one rank
};
// Parameters are Replicate, activations are split along the sequence dimension `dim`. For norms and dropout between
// tensor-parallel modules.
struct SequenceParallel {
  // Sequence dimension of the activations.
  std::int64_t dim = 1;
};
// Redistributes only the first input of a module.
struct PrepareModuleInput {
  // Placement of the first input.
  Placement in;
};
// Redistributes only the output of a module.
struct PrepareModuleOutput {
  // Placement of the output.
  Placement out;
};
// Splits only parameters, of any number of dimensions, along `dim`; or replicates them.
struct ShardParameter {
  // The dimension that is split.
  std::int64_t dim = 0;
};
struct ReplicateParameter {};
// Redistributes an activation point, which is matched by its full name ("h.0.attn.scores").
struct ConstrainActivation {
  // Placement on the plan's axis.
  Placement placement;
};

// Any style.
using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput,
                                   PrepareModuleOutput, ShardParameter, ReplicateParameter, ConstrainActivation>;

// Pairs of a pattern over full names (of modules, parameters and activation points) and a style: {"h.*.attn.q_proj",
// ColwiseParallel()}. "*" matches any part of a name between dots, "**" any part. An empty pattern matches the model
// itself.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

// Mesh axis and activation points of a plan.
struct ParallelizeOptions {
  std::string axis = "tp";  // name of the mesh axis; ignored on a 1-D mesh
  // Activation points of a model that is not an nn::Module. (An nn::Module has "in" and "out" for each module, and the
  // points that its modules register.) Such a model calls constrain("name", x) under a ParallelModel::Scope.
  std::vector<std::string> activations = {};
};

// The decisions of parallelize(), for printing. A model that is not an nn::Module needs it for Scope.
class DTENSOR_API ParallelModel {
 public:
  // Placement of one parameter or activation point.
  struct Decision {
    std::string name;  // name of the parameter or activation point
    // Placement on the plan's axis.
    Placement placement;
    std::string entry;  // pattern of the entry; empty: no entry matched, Replicate
  };
  // All decisions, also as text.
  const std::vector<Decision>& parameters() const;
  const std::vector<Decision>& activations() const;
  std::string str() const;

  // The combined plans of all Scopes on this thread; outside any Scope, a plan that changes nothing. A Scope of the
  // result on another thread applies these plans alone.
  static ParallelModel current();

  struct State;
  // During its lifetime, named activation points of this thread follow the plan and those of the enclosing scopes. Of
  // plans for the same axis, the innermost applies.
  class DTENSOR_API Scope {
   public:
    explicit Scope(const ParallelModel& model);

   private:
    std::shared_ptr<const void> scope_;
  };

 private:
  explicit ParallelModel(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
  friend DTENSOR_API ParallelModel parallelize(nn::Module& model, const DeviceMesh& mesh, const ParallelPlan& plan,
                                               const ParallelizeOptions& options);
  friend DTENSOR_API ParallelModel parallelize(const NamedTensors& parameters, const DeviceMesh& mesh,
                                               const ParallelPlan& plan, const ParallelizeOptions& options);
};

// Distributes every parameter over `mesh`.
// - Regular tensors (equal on all ranks) become DTensors; those on the meta device get memory for their local tensor.
// - DTensors on `mesh` or on a slice of it are redistributed on the plan's axis and keep their other placements.
// - Parameters without a matching entry are Replicate on the plan's axis. They are not changed if their mesh has axes
// of
//   other names (experts after apply_expert_parallel).
// Throws if an entry matches nothing (the error lists the nearest names), or if two entries match the same tensor or
// activation point. Plans for several axes can be applied one after the other: activation points of an nn::Module then
// combine them. Of plans for the same axis, the last applies.
DTENSOR_API ParallelModel parallelize(nn::Module& model, const DeviceMesh& mesh, const ParallelPlan& plan,
                                      const ParallelizeOptions& options = {});
DTENSOR_API ParallelModel parallelize(const NamedTensors& parameters, const DeviceMesh& mesh, const ParallelPlan& plan,
                                      const ParallelizeOptions& options = {});

// For a torch::nn::Module, or any type whose named_parameters() gives items with key() and value(). It returns copies
// of tensor handles, so its tensors cannot be replaced: build it in a MeshScope. Its parameters are redistributed in
// place.
template <class Model>
requires(!std::is_base_of_v<nn::Module, Model> && !std::is_convertible_v<const Model&, NamedTensors>) ParallelModel
    parallelize(Model& model, const DeviceMesh& mesh, const ParallelPlan& plan,
                const ParallelizeOptions& options = {}) {
  std::vector<std::pair<std::string, at::Tensor>> handles;
  for (const auto& item : model.named_parameters()) handles.emplace_back(item.key(), item.value());
  NamedTensors list;
  for (auto& [name, tensor] : handles) {
    TORCH_CHECK(
        is_dtensor(tensor) && DTensor(tensor).mesh() == mesh, "parallelize: parameter '", name, "' is not on ",
        mesh.str(),
        "; its tensors cannot be replaced in this kind of module: build the module in a MeshScope of that mesh");
    list.emplace_back(name, &tensor);
  }
  return parallelize(list, mesh, plan, options);
}

}  // namespace dtensor
