// Pipeline parallelism: the model is cut into stages along one mesh axis, the batch into microbatches, and each rank
// runs the stages that a schedule gives it (dtensor/pipeline_schedule.h). A stage's parameters live on its slice of the
// mesh, so that fully_shard, parallelize and experts compose inside it as without a pipeline. See
// docs/design/pipeline.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {

// What stages pass on.
using Tensors = std::vector<at::Tensor>;

// Part of a model as a function of the tensors that the part before it returns; of the first, of the step's inputs, of
// which the first that has dimensions tells the rows of its microbatch.
// Tensors that a later part needs (a skip connection, an auxiliary loss) are passed on. DTensors among them lie on the
// mesh of the stage.
using StageFunction = std::function<Tensors(const Tensors&)>;

// A model as layers in a row, which stages are made of.
struct Layer {
  // In messages; and what it computes.
  std::string name;
  StageFunction forward;
  double cost = 1;  // of its forward, relative to the others'; for balanced_stages
};

// Which stage each layer belongs to: `stages` runs of neighbours, none empty, whose dearest is as cheap as can be.
// Costs are finite and not negative. Pure.
DTENSOR_API std::vector<int> balanced_stages(const std::vector<double>& costs, int stages);
// The layers that `stage_of` puts on a stage, in a row.
DTENSOR_API StageFunction stage_of_layers(const std::vector<Layer>& layers, const std::vector<int>& stage_of,
                                          int stage);

// The mean loss over a microbatch, a number, from what the last stage returns and the microbatch's targets.
using LossFunction = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;
// What that mean is over: the number of rows, or of targets that count. A plain number, equal on all ranks of a stage.
using WeightFunction = std::function<double(const Tensors& targets)>;
DTENSOR_API WeightFunction rows();                                           // size(0) of the first target
DTENSOR_API WeightFunction valid_targets(std::int64_t ignore_index = -100);  // of the first target

// Of a pipeline.
struct PipelineOptions {
  std::string axis = "pp";         // of the mesh
  WeightFunction weight = rows();  // microbatches count by it, so that the loss is that of the whole batch
};

// Of one step.
struct StepOptions {
  double loss_scale = 1;  // what gradients are multiplied by (get_scale() of a GradScaler with the pipeline's mesh)
};

// What a step did.
struct StepResult {
  at::Tensor loss;                              // float64, no dimensions; the same on every rank
  std::vector<int> live_activations;            // of each stage of this rank: the most microbatches held at once
  std::vector<TimedAction> actions;             // of this rank, in seconds since the step began
  std::chrono::steady_clock::time_point begin;  // when the step began, on this rank
};

// One training step at a time over the ranks of a mesh. Every rank of the mesh makes it alike and calls alike; ranks
// outside of it may, and take part in nothing: what is returned there is empty.
class DTENSOR_API Pipeline {
 public:
  // `mesh` has options.axis, along which `schedule` has a line for each rank. The schedule is checked, and gets its
  // sends and receives if it has none.
  Pipeline(const DeviceMesh& mesh, Schedule schedule, LossFunction loss, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;

  // The stages of this rank, in rising order; the last stage of all; the mesh without the pipeline's axis, on which
  // their parameters belong (undefined where that is its only axis: parameters are plain tensors then).
  const std::vector<int>& stages() const;
  int last_stage() const;
  DeviceMesh stage_mesh() const;
  // That of any stage: a model whose parameters all lie on their stages' meshes is whole on every rank, and costs
  // memory only for this rank's stages; optimizers, clipping and checkpoints then work as without a pipeline.
  DeviceMesh stage_mesh(int stage) const;
  const Schedule& schedule() const;

  // Sets what a stage of this rank computes, and the parameters that it has, in the model's order. They are needed for
  // UNSHARD, RESHARD and REDUCE_GRAD, for clip_grad_norm_, and for gradients that the last microbatch does not reach
  // (an expert without tokens in it), which stay unreduced else. An empty list: the stage has none. Gradients wait for
  // a later step where NoGradientSync is active.
  void set_stage(int stage, StageFunction forward, std::vector<at::Tensor> parameters);
  void set_stage(int stage, StageFunction forward);  // parameters not told
  // A parameter that several stages use (an embedding tied to the head), each with a copy of its own on its ranks:
  // their gradients are summed at the end of a step that reduces gradients; where NoGradientSync or NoReplicaSync is
  // active, each copy keeps its part until then. Copies that no stage's gradient reaches get none. Called before the
  // first step; `copies` are this rank's, equal and in equal placements wherever they are, each of one name.
  // Collective: ranks without a copy give none.
  void tie(const std::string& name, const std::vector<at::Tensor>& copies);

  // Forward and backward of all microbatches; gradients of the mean loss over the whole batch are added to .grad, and
  // reduced over the stage's mesh once. `inputs` has an entry for each microbatch on the ranks of stage 0 and is empty
  // elsewhere, `targets` on those of the last stage. Microbatches may differ in size, and steps in everything.
  // Collective over the mesh. Mistakes in what is given are one error on all ranks, before anything has begun; so is a
  // step without gradients (NoGradGuard). An exception of a stage, of the loss or in backward is an error on all ranks
  // when each has come to the end of its list: random numbers are then where they were, and the next step is a step as
  // any other, once the gradients that this one left are dropped. (Where some ranks of a stage throw and its others
  // wait for them in a collective, that is told as elsewhere.) Backward is not under the caller's autocast.
  StepResult step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets, StepOptions options = {});
  // The mean loss alone, without gradients.
  at::Tensor evaluate(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets);

  // dtensor::clip_grad_norm_ over the parameters of all stages, as set_stage got them; of tied ones the first copy
  // counts, and all are scaled. Collective. Returns the total norm, a float64 number, which has the same bits for any
  // number of stages. Throws on every rank where the parameters of a stage were not told.
  at::Tensor clip_grad_norm_(double max_norm);

  // Gives parameters on the meshes of other ranks' stages a gradient: a handle without data, as they have one in a
  // program in which every rank runs every operator. Optimizers, clipping and checkpoints over the whole model then go
  // the same way on all ranks. Every parameter that wants a gradient must get one on its own ranks.
  void set_placeholder_gradients(const std::vector<at::Tensor>& parameters) const;

  // The actions of all ranks of this rank's line, as schedule_svg() takes them. Collective.
  std::vector<std::vector<TimedAction>> gather_actions(const std::vector<TimedAction>& own) const;

 private:
  struct Impl;
  Impl& impl() const;  // throws where this was moved from

  std::unique_ptr<Impl> impl_;
};

// A plain tensor (or one whose dim 0 is not split) in `count` parts along dim 0, whose sizes differ by one at most;
// fewer rows than parts leave some empty, which is an error.
DTENSOR_API std::vector<at::Tensor> microbatches(const at::Tensor& batch, int count);

}  // namespace dtensor::pipeline
