// A pipeline of the model: which layers are on which stage, and a step on microbatches.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "args.h"
#include "data.h"
#include "dtensor/pipeline.h"
#include "model.h"

namespace train {

// The mesh with the axis pp before the others. Collective over `world`.
dtensor::DeviceMesh make_pipeline_mesh(const dtensor::Communicator& world, const MeshShape& shape,
                                       c10::DeviceType device);

class Stages {
 public:
  // Cuts the model, whose parameters are still to be distributed. Throws UsageError where it has too few layers.
  Stages(Gpt& model, const dtensor::DeviceMesh& mesh, const Options& options);

  // The model's direct children (wte, h.0, ..., lm_head) with the mesh of their stage. The model is whole on every
  // rank; what is on other ranks' stages takes no memory here.
  struct Part {
    std::string name;
    dtensor::nn::Module* module;
    dtensor::DeviceMesh mesh;
    int stage;
  };
  const std::vector<Part>& parts() const { return parts_; }
  int count() const { return pipeline_.last_stage() + 1; }

  // Tells the pipeline the stages, whose parameters are distributed by now.
  void set();

  const std::vector<int>& own() const { return pipeline_.stages(); }  // of this rank
  const dtensor::pipeline::Schedule& schedule() const { return pipeline_.schedule(); }

  // Forward and backward of a piece of a batch, which every rank has; what its mean loss adds to the batch's, of which
  // it is `share`.
  double run(const Batch& piece, double share);
  // Called after each forward pass, with each part of the model that this rank ran.
  void on_forward(std::function<void(dtensor::nn::Module&)> reported) { on_forward_ = std::move(reported); }
  // What this rank did since it was last asked: since when, and what in which of the seconds from then.
  using Actions = std::vector<dtensor::pipeline::TimedAction>;
  std::pair<std::chrono::steady_clock::time_point, Actions> take_actions();
  void update_load_balancers();
  // A number of the whole model that ranks without a stage were not told (a norm), on every rank. Collective where the
  // schedule leaves such ranks.
  double on_every_rank(const at::Tensor& number) const;
  // The last step as measured, as a picture. Collective.
  std::string diagram() const;

 private:
  dtensor::NamedTensors parameters_of(int stage) const;
  dtensor::pipeline::StageFunction stage_function(int stage) const;

  Gpt& model_;
  const Options& options_;
  dtensor::pipeline::Pipeline pipeline_;
  std::vector<int> stage_of_;  // each layer
  std::vector<Part> parts_;
  dtensor::pipeline::StepResult last_step_;
  std::function<void(dtensor::nn::Module&)> on_forward_;
  std::chrono::steady_clock::time_point began_;
  Actions actions_;
};

// Throws UsageError where --schedule is neither a name nor a file with a schedule for this many ranks.
dtensor::pipeline::Schedule schedule_of(const Options& options, int ranks);

}  // namespace train
