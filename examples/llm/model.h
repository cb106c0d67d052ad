// A model from a folder, on a mesh.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "args.h"
#include "dtensor/checkpoint.h"
#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/nn/decoder.h"
#include "hf_config.h"

namespace llm {

struct Model {
  std::unique_ptr<dtensor::nn::Decoder> decoder;
  dtensor::DeviceMesh mesh;  // dp, shard, tp; none: plain tensors on one rank

  // ids, the same on every rank: DTensors where there is a mesh, whole on every rank or split by sequences.
  at::Tensor place(const at::Tensor& ids, bool split_batch = false) const;
};

// The mesh that was asked for (default: all ranks of `world` as tp), or a UsageError on every rank.
MeshSizes fit_mesh(const std::optional<MeshSizes>& asked, int ranks, const Family& family);

struct ModelOptions {
  at::ScalarType dtype = at::kFloat;
  dtensor::nn::LoraOptions lora = {};  // with a rank, adapters alone are trained
  // A mesh of one rank too, so that random numbers are those of any mesh; else one rank has plain tensors.
  bool always_mesh = false;
};

// The family's model with the mesh's placements and no values yet, but for adapters. A rank has memory for its part
// only.
Model make_model(const Family& family, const MeshSizes& sizes, const dtensor::Communicator& world,
                 const ModelOptions& options = {});
// Reads its parameters from the folder; each rank its part. Collective.
void load_parameters(const Model& model, const Family& family, const std::string& folder,
                     const dtensor::Communicator& world);
bool is_adapter(const std::string& parameter);  // by its name
// Of the bits of all parameters but adapters, which are trained over them: the same on every mesh. Needs a mesh.
// Collective.
std::uint64_t base_fingerprint(const Model& model);
// All that a folder has of the model: parameters (adapters apart) and buffers.
dtensor::StateTensors stored_state(const Model& model);

}  // namespace llm
