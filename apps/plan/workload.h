// What is planned: steps of a decoder, and the layers of a pipeline stage.
#pragma once

#include "dtensor/nn/decoder.h"

namespace plan {

// What a step computes.
struct Workload {
  dtensor::nn::DecoderConfig model;
  std::int64_t batch = 1, sequence = 1;  // sequences in a step over all ranks, tokens of a sequence
};

// The layers of a stage: so many blocks, with the embedding (first stage), with the norm and the head (last stage).
struct Part {
  std::int64_t blocks = 1;
  bool first = true, last = true;
};

// A decoder of the model's last blocks, without memory; of more blocks than it has, too. In models whose first layers
// are dense, most have experts.
dtensor::nn::DecoderConfig last_blocks(const dtensor::nn::DecoderConfig& model, std::int64_t blocks);

}  // namespace plan
