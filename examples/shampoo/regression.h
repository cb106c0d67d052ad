// The experiment: a small network on fixed data, trained with Shampoo on one device and on meshes. This module defines
// the model, its initial values, the data and the layouts; callers print or test the curves.
#pragma once

#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "dtensor/optim.h"

namespace shampoo {

// Sizes of the axes (replicate, shard, tp).
struct MeshLayout {
  std::string name;
  std::int64_t replicate = 1, shard = 1, tp = 1;
  std::int64_t size() const { return replicate * shard * tp; }
};

enum class Initialization : std::uint8_t {
  scope,  // Modules are created sharded in a MeshScope.
  meta,   // Created on the meta device, distributed, allocated locally, then initialized.
};

// The library's implementation, and wrong ones as negative controls.
enum class Method : std::uint8_t {
  full_blocks,      // The library's Shampoo.
  shard_blocks,     // Every rank runs Shampoo on its shards.
  first_shard_only  // The library's, but only the first rank keeps its update.
};

struct Experiment {
  dtensor::ShampooOptions options;
  at::ScalarType dtype = at::kFloat;
  c10::DeviceType device = c10::kCPU;
  std::int64_t steps = 100;
  Initialization initialization = Initialization::scope;
  Method method = Method::full_blocks;
};

// The options of the three recorded runs: grafted with late and rare roots, grafted with roots in each step, ungrafted.
dtensor::ShampooOptions rare_roots();
dtensor::ShampooOptions frequent_roots();
dtensor::ShampooOptions no_grafting();

// The layouts that fit: DP, SHARD, HSDP, TP, FSDP on TP.
std::vector<MeshLayout> layouts(std::int64_t ranks);

// The loss before each step and after the last. Collective over `world`, whose size is the layout's.
std::vector<double> train(const dtensor::Communicator& world, const MeshLayout& layout, const Experiment& experiment);
// Regular tensors, no mesh. The batch is summed in `pieces` parts, which changes rounding only.
std::vector<double> train_on_one_device(const Experiment& experiment, std::int64_t pieces = 1);

// The largest difference of two curves relative to the second, which decreases over orders of magnitude.
double deviation(const std::vector<double>& curve, const std::vector<double>& reference);

}  // namespace shampoo
