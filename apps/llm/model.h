// A model from a folder, on a mesh.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "args.h"
#include "dtensor/bit_identical.h"
#include "dtensor/checkpoint.h"
#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/nn/decoder.h"
#include "llm/hf/hf_config.h"
#include "planned.h"

namespace llm {

struct Model {
  std::unique_ptr<dtensor::nn::Decoder> decoder;
  // dp, shard, tp, or the axes of a layout; without a mesh: regular tensors on one rank.
  dtensor::DeviceMesh mesh;
  c10::DeviceType device = c10::kCPU;
  std::unique_ptr<PlannedDecoder> planned = {};  // With a layout: runs the decoder.
  bool bit_identical = false;

  // To be kept while the model computes; null unless bit_identical.
  std::unique_ptr<const dtensor::BitIdentical> bit_identical_scope() const {
    return bit_identical ? std::make_unique<const dtensor::BitIdentical>() : nullptr;
  }
  // ids on the CPU, the same on every rank. With a mesh the result is a DTensor, replicated or split by sequences.
  at::Tensor place(const at::Tensor& ids, bool split_batch = false) const;
};

// The requested mesh (default: all ranks of `world` as tp). Throws UsageError on every rank if it does not fit.
MeshSizes fit_mesh(const std::optional<MeshSizes>& asked, int ranks, const Family& family);
// Throws UsageError if the layout of --plan does not fit the model, the sizes of a batch or the number of ranks.
void check_layout(const dtensor::ParallelLayout& layout, const dtensor::nn::DecoderConfig& model, std::int64_t batch,
                  std::int64_t sequence, int ranks);

struct ModelOptions {
  at::ScalarType dtype = at::kFloat;
  dtensor::nn::LoraOptions lora = {};  // With a rank, only adapters are trained.
  // Uses a mesh for one rank too, so that random numbers are those of any mesh; otherwise one rank has regular tensors.
  bool always_mesh = false;
  c10::DeviceType device = c10::kCPU;
  std::optional<dtensor::ParallelLayout> layout = {};  // Instead of mesh sizes.
  bool bit_identical = false;                          // Uses a mesh for one rank too.
};

// The family's model with the mesh's placements. Only adapters are initialized. Each rank allocates its local tensors
// only.
Model make_model(const Family& family, const MeshSizes& sizes, const dtensor::Communicator& world,
                 const ModelOptions& options = {});
// Reads the parameters from the folder; each rank reads its shards. Collective.
void load_parameters(const Model& model, const Family& family, const std::string& folder,
                     const dtensor::Communicator& world);
bool is_adapter(const std::string& parameter);  // By its name.
// A hash of the bits of all parameters except adapters, which are trained over them: the same on every mesh. Needs a
// mesh. Collective.
std::uint64_t base_fingerprint(const Model& model);
// The parameters (without adapters) and buffers that a folder stores.
dtensor::StateTensors stored_state(const Model& model);

}  // namespace llm
