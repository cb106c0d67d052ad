// Parameters and gradients as lists for foreach operators: one bucket per group, device and dtype, with any meshes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dtensor/optim/optimizer.h"
#include "dtensor/placement.h"

namespace dtensor::optim {

struct Bucket {
  std::size_t group = 0;
  std::vector<detail::SlotOptimizer::Entry*> entries;
  std::vector<at::Tensor> parameters, gradients;

  // Slot `index` of each entry; missing slots are created as zeros like the parameter.
  std::vector<at::Tensor> slots(std::size_t index) const;
  // The step count of each entry as a scalar on the parameter's device; entries with equal counts share it.
  std::vector<at::Tensor> steps() const;
};

// Device of the tensor's data. Offloaded parameters are in host memory but report the device of their mesh.
c10::Device device_of_data(const at::Tensor& tensor);

Placements without_storage(Placements placements);
// Whether both place the same elements on each rank; ignores storage flags and axes of size 1.
bool same_local_shards(const Placements& a, const Placements& b, at::IntArrayRef mesh_shape);

// Throws if step() cannot use the entry's gradient or state.
void check_entry(const detail::SlotOptimizer::Entry& entry);

// The gradient in the dtype of the entry, with the parameter's mesh and placements, so that elementwise operators do
// not communicate.
at::Tensor gradient_of(const detail::SlotOptimizer::Entry& entry);

// Groups entries that check_entry() has accepted by group, dtype and device. The order of buckets is the same on all
// ranks, whichever parameters have a gradient. Redistributes gradients and slots to the placements of the parameters
// before these change. `dense`: also copies them to the strides of their parameter.
std::vector<Bucket> make_buckets(const std::vector<detail::SlotOptimizer::Entry*>& active, bool dense);

// Buckets for fused kernels and for foreach operators.
struct Calls {
  std::vector<Bucket> fused, listed;
};
// `fused`: whether the options of a group request fused kernels.
Calls make_calls(const std::vector<detail::SlotOptimizer::Entry*>& active,
                 const std::function<bool(std::size_t group)>& fused);

}  // namespace dtensor::optim
