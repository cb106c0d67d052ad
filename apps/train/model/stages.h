// A pipeline of the model: the layers of each stage, and a step on microbatches.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "dtensor/pipeline.h"
#include "train/args.h"
#include "train/data/data.h"
#include "train/model/loss.h"
#include "train/model/model.h"

namespace train {

// The mesh with the axis pp before the others. Collective over `world`.
dtensor::DeviceMesh make_pipeline_mesh(const dtensor::Communicator& world, const MeshShape& shape,
                                       c10::DeviceType device);

class Stages {
 public:
  // Cuts the model before its parameters are distributed. Throws UsageError if it has too few layers.
  Stages(Gpt& model, const dtensor::DeviceMesh& mesh, const Options& options);

  // The model's direct children (embed, layers.0, ..., lm_head) with the mesh of their stage. Every rank has the full
  // model, but parameters of other ranks' stages are not allocated.
  struct Part {
    std::string name;
    dtensor::nn::Module* module;
    dtensor::DeviceMesh mesh;
    int stage;
  };
  const std::vector<Part>& parts() const { return parts_; }
  const Gpt& model() const { return model_; }
  int count() const { return pipeline_.last_stage() + 1; }

  // Sets the stages of the pipeline, after their parameters were distributed.
  void set();

  const std::vector<int>& own() const { return pipeline_.stages(); }  // Of this rank.
  const dtensor::pipeline::Schedule& schedule() const { return pipeline_.schedule(); }

  // Forward and backward of a part of a batch that every rank has. Ranks of the last stage add it to the batch's loss.
  void run(const Batch& piece, BatchLoss& loss);
  // Called after each forward pass, with each part of the model that this rank ran.
  void on_forward(std::function<void(dtensor::nn::Module&)> reported) { on_forward_ = std::move(reported); }
  // The actions of this rank since the last call: a start time, and their times relative to it.
  using Actions = std::vector<dtensor::pipeline::TimedAction>;
  std::pair<std::chrono::steady_clock::time_point, Actions> take_actions();
  void update_load_balancers();
  // Gives all ranks the buffers (biases of load balancers) of each stage, so that any of them saves them. Collective.
  void share_buffers();
  // Broadcasts a value of the full model (a norm) to ranks without a stage. Collective if the schedule has such ranks.
  double on_every_rank(const at::Tensor& number) const;
  // The mean of the batch's parts so far. Collective in a BitIdentical scope.
  at::Tensor on_every_rank(const BatchLoss& loss);
  // A diagram of the last step as measured. Collective.
  std::string diagram() const;

 private:
  dtensor::NamedTensors parameters_of(int stage) const;
  dtensor::pipeline::StageFunction stage_function(int stage) const;
  dtensor::pipeline::Pipeline make_pipeline(const dtensor::DeviceMesh& mesh);
  double broadcast(double number, int stage) const;

  Gpt& model_;
  const Options& options_;
  dtensor::pipeline::Pipeline pipeline_;
  std::vector<int> stage_of_;  // Of each layer.
  std::vector<Part> parts_;
  dtensor::pipeline::StepResult last_step_;
  BatchLoss* loss_ = nullptr;  // Of the batch of the current step.
  at::Tensor contributions_;   // Of its parts, which the pipelines' steps returned.
  std::function<void(dtensor::nn::Module&)> on_forward_;
  std::chrono::steady_clock::time_point began_;
  Actions actions_;
};

// Throws UsageError if --schedule is neither a name nor a file with a schedule for this many ranks.
dtensor::pipeline::Schedule schedule_of(const Options& options, int ranks);

}  // namespace train
