// A few training steps of a small network with reports: why operators run as they do, and the communication of each
// part of the model. Also half precision with a loss scale, and parameters in host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"

namespace inside {

struct Flags {
  std::int64_t steps = 20;
  double loss_scale = 0;     // Initial scale; 0: computes in float, without a scale.
  bool cpu_offload = false;  // Parameters, gradients and states in host memory (no effect on a CPU mesh).
};

struct Report {
  std::vector<double> losses;
  std::string explanation;  // Operators of a forward pass: candidates, costs and the choice.
  std::string comm_table;   // Collectives of the last step by module, axis and phase.
  double scale = 1;         // Of the loss, at the end.
  int skipped = 0;          // Steps whose gradients overflowed.
};

// Runs on all ranks of `world`. With four ranks, half of them split each layer and half the batch. Collective.
Report train(const dtensor::Communicator& world, c10::DeviceType device, const Flags& flags);

}  // namespace inside
