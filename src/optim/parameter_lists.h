// Parameters and their gradients as the lists that list operators take: one bucket per group, device and dtype,
// whatever the meshes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dtensor/optim/optimizer.h"
#include "dtensor/placement.h"

namespace dtensor::optim {

struct Bucket {
  std::size_t group = 0;
  std::vector<OptimizerEntry*> entries;
  std::vector<at::Tensor> parameters, gradients;

  // Slot `index` of each entry; zeros like the parameter where it has none yet.
  std::vector<at::Tensor> slots(std::size_t index) const;
  // The step count of each entry as a number on the parameter's device, shared where equal.
  std::vector<at::Tensor> steps() const;
};

// Where a tensor's data is: parameters in host memory give themselves out for their device's.
c10::Device device_of_data(const at::Tensor& tensor);

Placements without_storage(Placements placements);
// Whether both put the same elements on each rank: storage flags and axes of size 1 do not matter.
bool same_local_shards(const Placements& a, const Placements& b, at::IntArrayRef mesh_shape);

// Throws where a step cannot take the entry's gradient or state.
void check_entry(const OptimizerEntry& entry);

// The gradient in its entry's dtype, on the parameter's mesh and placements, so that elementwise operators need not
// communicate.
at::Tensor gradient_of(const OptimizerEntry& entry);

// Of entries that are checked. By group, dtype and device, in an order that all ranks share whichever of the parameters
// have a gradient there. Gradients and slots are brought to where the parameters are, so that nothing moves afterwards,
// when parameters change. `dense`: they take their parameter's strides, too.
std::vector<Bucket> make_buckets(const std::vector<OptimizerEntry*>& active, bool dense);

// The same, of those that a fused kernel takes and of the others.
struct Calls {
  std::vector<Bucket> fused, listed;
};
// `fused`: whether a group's options want such a kernel.
Calls make_calls(const std::vector<OptimizerEntry*>& active, const std::function<bool(std::size_t group)>& fused);

}  // namespace dtensor::optim
