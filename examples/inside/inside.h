// A few steps of a small network, seen from inside: why an operator runs as it does, what was communicated for which
// part of the model, half precision under a loss scale, parameters kept in host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"

namespace inside {

struct Flags {
  std::int64_t steps = 20;
  double loss_scale = 0;     // the first; 0: computed in float, without one
  bool cpu_offload = false;  // parameters, gradients and states in host memory (where the mesh is of CPUs they are)
};

struct Report {
  std::vector<double> losses;
  std::string explanation;  // the operators of a forward pass: candidates, prices and the choice
  std::string comm_table;   // a table of the last step's collectives, by module, axis and phase
  double scale = 1;         // of the loss, at the end
  int skipped = 0;          // steps whose gradients overflowed
};

// On all ranks of `world`, half of them split each layer and half the batch where there are four. Collective.
Report train(const dtensor::Communicator& world, c10::DeviceType device, const Flags& flags);

}  // namespace inside
