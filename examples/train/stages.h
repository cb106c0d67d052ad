// A pipeline of the model: which layers are on which stage, and a step on microbatches.
#pragma once

#include "args.h"
#include "data.h"
#include "dtensor/pipeline.h"
#include "model.h"

namespace train {

// The mesh with the axis pp before the others. Collective over `world`.
dtensor::DeviceMesh make_pipeline_mesh(const dtensor::Communicator& world, const MeshShape& shape);

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

  // Forward and backward of a batch that every rank has; its mean loss.
  double run(const Batch& batch);
  const dtensor::pipeline::StepResult& last_step() const { return last_step_; }
  void update_load_balancers();
  // The last step as measured, as a picture. Collective.
  std::string picture() const;

 private:
  dtensor::NamedTensors parameters_of(int stage) const;
  dtensor::pipeline::StageFunction stage_function(int stage) const;

  Gpt& model_;
  const Options& options_;
  dtensor::pipeline::Pipeline pipeline_;
  std::vector<int> stage_of_;  // each layer
  std::vector<Part> parts_;
  dtensor::pipeline::StepResult last_step_;
};

// Throws UsageError where --schedule is neither a name nor a file with a schedule for this many ranks.
dtensor::pipeline::Schedule schedule_of(const Options& options, int ranks);

}  // namespace train
