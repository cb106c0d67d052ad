// Energies, forces and the gradients of a force loss, on the ranks of a communicator or on one part.
#pragma once

#include <cstdint>
#include <vector>

#include "dtensor/comm.h"
#include "model.h"

namespace potential {

// Results of the full system, equal on all ranks.
struct Result {
  double energy = 0, loss = 0;
  at::Tensor forces;                  // [atoms, 3]
  std::vector<at::Tensor> gradients;  // of the loss, by the parameters
};

// Sizes of a rank's part, and bytes that it received for the energy and for the forces.
struct Cost {
  std::int64_t owned = 0, ghosts = 0, remote_ghosts = 0, remote_copies = 0, edges = 0;
  std::int64_t energy_bytes = 0, force_bytes = 0;
};

// The loss is the mean square of the difference to the forces `wanted` [atoms, 3]. Collective. Fills `cost` if given.
Result evaluate(const Model& model, const System& system, const Domain& domain, const at::Tensor& wanted,
                Cost* cost = nullptr);

// The same without ranks and ghosts.
Result evaluate_on_one_part(const Model& model, const System& system, const at::Tensor& wanted);

// The largest difference of energies, forces and gradients.
double largest_difference(const Result& a, const Result& b);

}  // namespace potential
