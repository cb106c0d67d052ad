// Tensor and sequence parallelism as a plan: which entry of a model's names is split how on one mesh axis. The model
// stays as it was written for one device.
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

// Brings x to `placements` (one per axis of its mesh), and the gradient that comes back to those of x, at this point
// and not later (Partial takes Replicate). A sum of partial gradients is so reduced once.
DTENSOR_API at::Tensor constrain(const at::Tensor& x, const Placements& placements);
// The same on one axis, the others as they are.
DTENSOR_API at::Tensor constrain(const at::Tensor& x, const std::string& axis, Placement placement);
// A named activation point: does what the plan in force (ParallelModel::Scope) says for that name, with the path of the
// ModuleScopes before it; x itself where it says nothing.
DTENSOR_API at::Tensor constrain(const char* point, const at::Tensor& x);

// Styles. `in` and `out` are placements on the plan's axis of a module's first input and its output; none: as they
// come.

// Every parameter of the module is split by output features (bias too); of a parameter that is matched by its own name,
// dimension 0. nn::Module::output_dim says otherwise for an embedding.
struct ColwiseParallel {
  // Of the first input and of the output; none: as they come.
  std::optional<Placement> in = Replicate();
  std::optional<Placement> out = {};
  // Consecutive features that no rank's part may divide (a head, a group of heads): where they do not come out even
  // over the ranks, whole blocks go to the first ranks (BlockShard).
  std::int64_t block = 1;
};
// Split by input features (dimension 1; rows of an nn::Embedding); what has none (a bias) is Replicate. The result is a
// partial sum, reduced to `out`.
struct RowwiseParallel {
  // Of the first input and of the output; none: as they come.
  std::optional<Placement> in = {};
  std::optional<Placement> out = Replicate();
  std::int64_t block = 1;  // of input features, as in ColwiseParallel
};
// Parameters Replicate, activations split along `dim`, the sequence: norms and dropout between the parallel parts.
struct SequenceParallel {
  // The sequence's, of activations.
  std::int64_t dim = 1;
};
// Only activations.
struct PrepareModuleInput {
  // Of the first input.
  Placement in;
};
// Likewise of what it returns.
struct PrepareModuleOutput {
  // Of the output.
  Placement out;
};
// Only parameters, of any rank: split along dim, or whole.
struct ShardParameter {
  // The dimension that is split.
  std::int64_t dim = 0;
};
struct ReplicateParameter {};
// An activation point by its full name ("h.0.attn.scores").
struct ConstrainActivation {
  // On the plan's axis.
  Placement placement;
};

// Any of them.
using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput,
                                   PrepareModuleOutput, ShardParameter, ReplicateParameter, ConstrainActivation>;

// Patterns over full names of modules, parameters and activation points; "*" stands for any part of a name between
// dots, "**" for any part: {"h.*.attn.q_proj", ColwiseParallel()}. An empty pattern is the model itself.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

// Where a plan applies.
struct ParallelizeOptions {
  std::string axis = "tp";  // of the mesh; a 1-D mesh needs none of that name
  // Activation points of a model that is no nn::Module (those have "in" and "out" for each module and what they
  // register). Such a model calls constrain("name", x) under a ParallelModel::Scope.
  std::vector<std::string> activations = {};
};

// What parallelize() decided; print it. Keep it for models that are no nn::Module.
class DTENSOR_API ParallelModel {
 public:
  // One parameter or activation point.
  struct Decision {
    std::string name;  // of a parameter or activation point
    // On the plan's axis.
    Placement placement;
    std::string entry;  // the pattern; empty: no entry, Replicate
  };
  // All decisions, and as text.
  const std::vector<Decision>& parameters() const;
  const std::vector<Decision>& activations() const;
  std::string str() const;

  // What is in force on this thread, that of all scopes around; the plan of none, which changes nothing, outside any
  // scope. Put in force elsewhere, it holds there as it does here, alone.
  static ParallelModel current();

  struct State;
  // While it lives, named activation points of this thread follow the plan, and those of the scopes around: of plans
  // for one axis the innermost.
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

// Places every parameter on `mesh`. Plain ones (equal on all ranks) are distributed, those on the meta device get
// memory for their part; DTensors on `mesh` or on a slice of it keep their placements on the other axes and are
// re-placed on the plan's. What no entry names is Replicate on the plan's axis, or stays as it is where its mesh has
// axes of other names (experts after apply_expert_parallel). Errors: an entry that matches nothing
// (with the nearest names), a tensor or activation point that two entries claim. Plans for several axes follow each
// other: an nn::Module's activation points then have the placements of all, on one axis those of the last.
DTENSOR_API ParallelModel parallelize(nn::Module& model, const DeviceMesh& mesh, const ParallelPlan& plan,
                                      const ParallelizeOptions& options = {});
DTENSOR_API ParallelModel parallelize(const NamedTensors& parameters, const DeviceMesh& mesh, const ParallelPlan& plan,
                                      const ParallelizeOptions& options = {});

// A torch::nn::Module (or anything whose named_parameters() gives items with key() and value()). It hands out copies of
// its handles, so its tensors cannot be exchanged: it must have been built in a MeshScope, and is re-placed in place.
template <class Model>
requires(!std::is_base_of_v<nn::Module, Model> && !std::is_convertible_v<const Model&, NamedTensors>) ParallelModel
    parallelize(Model& model, const DeviceMesh& mesh, const ParallelPlan& plan,
                const ParallelizeOptions& options = {}) {
  std::vector<std::pair<std::string, at::Tensor>> handles;
  for (const auto& item : model.named_parameters()) handles.emplace_back(item.key(), item.value());
  NamedTensors list;
  for (auto& [name, tensor] : handles) {
    TORCH_CHECK(is_dtensor(tensor) && DTensor(tensor).mesh() == mesh, "parallelize: parameter '", name, "' is not on ",
                mesh.str(),
                " and this kind of module does not let it be exchanged; build the module in a MeshScope of that mesh");
    list.emplace_back(name, &tensor);
  }
  return parallelize(list, mesh, plan, options);
}

}  // namespace dtensor
