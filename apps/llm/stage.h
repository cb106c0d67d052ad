// A part of a decoder: the layers of one pipeline stage, or all of them, on the mesh of a layout.
#pragma once

#include <vector>

#include "dtensor/estimate.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/nn/decoder.h"

namespace llm {

// Each tensor once, under its first name.
dtensor::NamedTensors distinct(const dtensor::NamedTensors& tensors);

class Stage final : public dtensor::nn::Callable<Stage> {
 public:
  struct Part {
    std::int64_t begin = 0, end = 0;  // blocks
    bool first = true, last = true;   // with the embedding; with the norm and the head
  };
  // Refers to layers of the decoder, which must outlive it.
  Stage(dtensor::nn::Decoder& decoder, const Part& part);

  // Distributes the parameters over a mesh with the axes replicate, shard, cp and tp: experts over ep, the others over
  // tp with sequence parallelism, all as units of FSDP.
  void distribute(const dtensor::DeviceMesh& mesh, const dtensor::ParallelLayout& layout);

  // A tensor in the order of the ranks: ids or targets [batch, sequence], activations [batch, sequence, hidden].
  static dtensor::Placements placements(bool activations = false);

  struct Output {
    // Logits [batch, sequence, vocabulary] of the last stage, else the input of the next one.
    at::Tensor y;
    at::Tensor loss;  // sum of the routers' losses; undefined without experts
    dtensor::nn::TensorSlots tensors() { return {&y, &loss}; }
  };
  // Ids of the first stage, else what the previous one returned. Blocks recompute what the layout says.
  Output forward(const at::Tensor& input) const;

  // A backward pass of one microbatch. Gradients are reduced, and gathered parameters freed, as the layout says.
  void backward(const at::Tensor& output, const at::Tensor& gradient, bool last_microbatch);

 private:
  bool contains(const std::string& layer) const;
  dtensor::ParallelPlan parallel_plan() const;

  dtensor::nn::Decoder& decoder_;
  Part part_;
  dtensor::ParallelLayout layout_;
  std::vector<dtensor::FsdpUnit> units_;
};

}  // namespace llm
