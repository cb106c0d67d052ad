// A message-passing potential in ATen: three layers; energies, forces as gradients, and a loss of the forces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "driver.h"

namespace potential {

inline constexpr std::int64_t kLayers = 3, kFeatures = 8, kRadial = 6;

// Parameters in float64: the features of each species, then for each layer a filter [kRadial, kFeatures] and a mixing
// matrix [kFeatures, kFeatures], and the weights of the energy [kFeatures].
using Model = std::vector<at::Tensor>;
Model random_model(std::uint64_t seed);

// Appends the ghosts to owned rows: GraphHalo::exchange, or nothing on one part.
using Extend = std::function<at::Tensor(const at::Tensor&)>;

// The energy of the owned atoms, a scalar. `positions` [owned, 3], `species` [owned].
at::Tensor energy(const Model& model, const at::Tensor& positions, const at::Tensor& species, const Edges& edges,
                  const Extend& extend);

// The forces on the owned atoms [owned, 3], which can be differentiated again.
at::Tensor forces(const at::Tensor& energy, const at::Tensor& positions);

}  // namespace potential
