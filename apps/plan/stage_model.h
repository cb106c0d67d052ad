// A part of a decoder: the layers of one pipeline stage, on the mesh of a layout.
#pragma once

#include <memory>
#include <vector>

#include "dtensor/estimate.h"
#include "dtensor/mesh.h"
#include "dtensor/nn/decoder.h"

namespace plan {

// What a step computes.
struct Workload {
  dtensor::nn::DecoderConfig model;
  std::int64_t batch = 1, sequence = 1;  // sequences in a step over all ranks, tokens of a sequence
};

// Embedding (first stage), blocks, norm and head (last stage).
class StageModel final : public dtensor::nn::Callable<StageModel> {
 public:
  struct Part {
    std::int64_t blocks = 1;
    bool first = true, last = true;
  };
  StageModel(const dtensor::nn::DecoderConfig& config, const Part& part);

  // Distributes the parameters: experts over ep, the others over tp with sequence parallelism, all as units of FSDP.
  void distribute(const dtensor::DeviceMesh& mesh, const dtensor::ParallelLayout& layout);
  // ids [batch, sequence] of the first stage, else activations [batch, sequence, hidden]. Returns activations, or the
  // mean loss of the last stage for targets of any ids.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& targets, dtensor::Recomputation recompute) const;

 private:
  at::Tensor run_block(std::size_t i, const at::Tensor& x, const dtensor::nn::DecoderPass& pass,
                       dtensor::Recomputation recompute) const;
  dtensor::ParallelPlan parallel_plan() const;

  dtensor::nn::DecoderConfig config_;
  Part part_;
  std::vector<dtensor::nn::Rope> ropes_;
  std::unique_ptr<dtensor::nn::Embedding> embed_;
  std::vector<std::unique_ptr<dtensor::nn::DecoderBlock>> blocks_;
  std::unique_ptr<dtensor::nn::Norm> norm_;
  std::unique_ptr<dtensor::nn::Projection> lm_head_;
};

}  // namespace plan
