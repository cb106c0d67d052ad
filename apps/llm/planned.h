// A decoder in a layout of `plan search`: on one mesh, or in the stages of a pipeline.
#pragma once

#include <memory>
#include <vector>

#include "dtensor/pipeline.h"
#include "stage.h"
#include "train/data/data.h"

namespace llm {

class PlannedDecoder {
 public:
  // Distributes the decoder's parameters. Throws UsageError if the layout does not fit the decoder.
  PlannedDecoder(dtensor::nn::Decoder& decoder, const dtensor::ParallelLayout& layout,
                 const dtensor::Communicator& world, c10::DeviceType device);

  // The mesh of all ranks.
  const dtensor::DeviceMesh& mesh() const { return mesh_; }
  // Forward and backward of all microbatches. Returns the mean loss, a regular scalar. Collective.
  at::Tensor step(const train::Batch& batch);
  // The mean loss of a batch without a step; only without a pipeline. Collective.
  at::Tensor loss(const train::Batch& batch);

 private:
  at::Tensor step_of_stages(const train::Batch& batch);

  dtensor::nn::Decoder& decoder_;
  dtensor::ParallelLayout layout_;
  dtensor::DeviceMesh mesh_;
  std::vector<std::unique_ptr<Stage>> stages_;  // all of the model
  std::unique_ptr<dtensor::pipeline::Pipeline> pipeline_;
};

}  // namespace llm
