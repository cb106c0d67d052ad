// The optimizers that train a decoder.
#pragma once

#include <memory>
#include <string>

#include "dtensor/nn/module.h"
#include "dtensor/optim.h"

namespace llm {

// "adamw"; or "muon" for the matrices of blocks and of experts, and AdamW for embeddings, head, routers, norms and
// biases. Muon's steps have the size of AdamW's (MuonOptions::match_adamw_rms), so both have the rate of `options`.
// `parameters`: each once, with the names of nn::Decoder.
std::unique_ptr<dtensor::Optimizer> make_optimizer(const std::string& name, const dtensor::NamedTensors& parameters,
                                                   const dtensor::AdamWOptions& options);

}  // namespace llm
