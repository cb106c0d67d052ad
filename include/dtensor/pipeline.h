// Pipeline parallelism: stages split the model along one mesh axis, microbatches split the batch, and each rank runs
// the stages of its line of the schedule (dtensor/pipeline_schedule.h). A stage's parameters are on its slice of the
// mesh, so fully_shard, parallelize and expert parallelism compose inside it. See docs/design/pipeline.md.
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

// What a stage receives and returns.
using Tensors = std::vector<at::Tensor>;

// A part of a model as a function of the tensors that the previous stage returns. The first stage receives the inputs
// of the step; the first of them that has dimensions gives the number of rows of the microbatch. Tensors that a later
// stage needs (a skip connection, an auxiliary loss) must be forwarded. DTensors among them are on the mesh of the
// stage.
using StageFunction = std::function<Tensors(const Tensors&)>;

// A layer of a sequential model, from which stages are built.
struct Layer {
  // Name for messages, and the computation.
  std::string name;
  StageFunction forward;
  double cost = 1;  // relative cost of its forward, for balanced_stages
};

// Stage of each layer: `stages` non-empty runs of consecutive layers, with the most expensive run as cheap as possible.
// Costs are finite and non-negative. A pure function.
DTENSOR_API std::vector<int> balanced_stages(const std::vector<double>& costs, int stages);
// The layers of `stage`, in sequence.
DTENSOR_API StageFunction stage_of_layers(const std::vector<Layer>& layers, const std::vector<int>& stage_of,
                                          int stage);

// The count over which the mean loss of a microbatch is taken: rows, or valid targets. A C++ number, equal on all ranks
// of a stage.
using WeightFunction = std::function<double(const Tensors& targets)>;
DTENSOR_API WeightFunction rows();                                           // size(0) of the first target
DTENSOR_API WeightFunction valid_targets(std::int64_t ignore_index = -100);  // of the first target

// Options of a pipeline.
struct PipelineOptions {
  std::string axis = "pp";         // name of the mesh axis
  WeightFunction weight = rows();  // weight of a microbatch in the loss of the batch; empty: losses are added
};

// Options of one step.
struct StepOptions {
  double loss_scale = 1;  // factor of gradients (get_scale() of a GradScaler with the pipeline's mesh)
};

// Results of one step.
struct StepResult {
  at::Tensor loss;                              // float64, no dimensions; the same on every rank
  std::vector<int> live_activations;            // peak of microbatches held at once, per stage of this rank
  std::vector<TimedAction> actions;             // actions of this rank, in seconds since the step began
  std::chrono::steady_clock::time_point begin;  // when the step began, on this rank
};

// Runs one training step at a time over the ranks of a mesh. Every rank of the mesh constructs it and calls it with the
// same options. Ranks outside the mesh may do so too: their calls do nothing and return empty results.
class DTENSOR_API Pipeline {
 public:
  // The mean loss over a microbatch, a scalar, from the outputs of the last stage and the targets of the microbatch.
  // Without PipelineOptions::weight: what the microbatch adds to the loss of the batch.
  using LossFunction = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;
  // `mesh` has options.axis, and `schedule` a line for each rank of that axis. The constructor checks the schedule and
  // adds sends and receives if it has none.
  Pipeline(const DeviceMesh& mesh, Schedule schedule, LossFunction loss, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;

  // The stages of this rank, ascending; the last stage of all; the mesh without the pipeline's axis, on which the
  // stages' parameters belong (undefined if the mesh has no other axis: parameters are regular tensors then).
  const std::vector<int>& stages() const;
  int last_stage() const;
  DeviceMesh stage_mesh() const;
  // The mesh of any stage. A model whose parameters are all on their stages' meshes can be constructed in full on every
  // rank and uses memory only for this rank's stages. Optimizers, clipping and checkpoints then work as without a
  // pipeline.
  DeviceMesh stage_mesh(int stage) const;
  const Schedule& schedule() const;

  // Sets the function of a stage of this rank, and its parameters in the model's order. Parameters are needed for
  // UNSHARD, RESHARD and REDUCE_GRAD, for clip_grad_norm_, and to reduce gradients that the last microbatch does not
  // reach (an expert without tokens in it). An empty list means that the stage has no parameters. Under NoGradientSync,
  // gradients are reduced in a later step.
  void set_stage(int stage, StageFunction forward, std::vector<at::Tensor> parameters);
  void set_stage(int stage, StageFunction forward);  // without its parameters
  // Ties a parameter that several stages use (an embedding tied to the head), with one copy on the ranks of each stage.
  // Their gradients are summed at the end of a step that reduces gradients; under NoGradientSync or NoReplicaSync, each
  // copy keeps its own gradient until then. Copies that no stage's gradient reaches get none. Call it before the first
  // step. `copies` are those of this rank; all copies of a name have equal values and placements.
  // Collective: ranks without a copy pass an empty list.
  void tie(const std::string& name, const std::vector<at::Tensor>& copies);

  // Forward and backward of all microbatches. Adds gradients of the mean loss over the entire batch to .grad and
  // reduces them once over the stage's mesh. `inputs` has an entry for each microbatch on the ranks of stage 0,
  // `targets` on those of the last stage; elsewhere they are empty. Microbatches may differ in size, and steps in all
  // arguments. Collective over the mesh. Invalid arguments, and a step without gradients (NoGradGuard), are the same
  // error on all ranks before any action runs. An exception in a stage, in the loss or in backward is an error on all
  // ranks after each has reached the end of its list. The random number state is then restored, and the next step works
  // after the gradients of the failed step are cleared. (If only some ranks of a stage throw and the others wait for
  // them in a collective, the error is that of the collective.) The caller's autocast does not apply to backward.
  StepResult step(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets, StepOptions options = {});
  // The mean loss without gradients.
  at::Tensor evaluate(const std::vector<Tensors>& inputs, const std::vector<Tensors>& targets);

  // dtensor::clip_grad_norm_ over the parameters of all stages, as passed to set_stage. The norm counts the first copy
  // of tied parameters, and all copies are scaled. Collective. Returns the total norm, a float64 scalar, bitwise equal
  // for any number of stages. Throws on every rank if set_stage got no parameter list for a stage.
  at::Tensor clip_grad_norm_(double max_norm);

  // Sets gradients of parameters on the meshes of other ranks' stages: handles without data, as in a program in which
  // every rank runs every operator. Optimizers, clipping and checkpoints over the entire model then take the same
  // branches on all ranks. Every parameter that requires a gradient must get one on its own ranks.
  void set_placeholder_gradients(const std::vector<at::Tensor>& parameters) const;

  // The actions of all ranks of this rank's pipeline, as schedule_svg() takes them. Collective.
  std::vector<std::vector<TimedAction>> gather_actions(const std::vector<TimedAction>& own) const;

 private:
  struct Impl;
  Impl& impl() const;  // throws if this was moved from

  std::unique_ptr<Impl> impl_;
};

// Splits a regular tensor, or a DTensor that is not sharded along dim 0, into `count` parts along dim 0, whose sizes
// differ by at most one. It is an error if there are fewer rows than parts.
DTENSOR_API std::vector<at::Tensor> microbatches(const at::Tensor& batch, int count);

}  // namespace dtensor::pipeline
