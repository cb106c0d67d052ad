// One recorded call under one placement of its tensors: run on every rank of a mesh, compared with what one device
// gave.
#pragma once

#include <string>
#include <vector>

#include "aten_cases/case_file.h"
#include "dtensor/dtensor.h"

namespace dtensor::cases {

// How the tensors of a case are placed (FORMAT.md): R, S0, Sl, S0_first, Sl_first, P, 2d_S0_Sl, 2d_P_S0.
struct Config {
  std::string name;
  bool two_dims = false;
  bool first_only = false;  // the others are Replicate
  // Of a tensor with `ndim` dimensions, floating or not.
  Placements (*placements)(std::int64_t ndim, bool floating);
};
const std::vector<Config>& configs();

struct Outcome {
  enum class Kind { pass, wrong, raise, elsewhere };  // elsewhere: the device has no such call, even without DTensors
  Kind kind = Kind::pass;
  std::string text;
};

// Configurations that differ for this case: not twice the same placements, and all-Replicate once.
std::vector<const Config*> distinct_configs(const Case& c);

// What a call gives on one device: its results, and the arguments that it writes.
struct Expected {
  std::vector<c10::IValue> results;
  std::vector<std::pair<std::string, c10::IValue>> mutated;
};
Expected recorded(const Case& c);
// Of the plain call on a device of that type, as its own kernels compute it. Throws what the call throws.
Expected computed(const Case& c, c10::DeviceType device);

// On this rank; throws Mismatch where the result differs.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void run_on_rank(const Case& c, const Config& config, const Communicator& world, const Expected& expected,
                 c10::DeviceType device = c10::kCPU);

// On `ranks` thread ranks; never hangs longer than a minute in one wait. Compared with what is recorded, off the CPU
// with what is computed.
Outcome run_case(const Case& c, const Config& config, int ranks = 4, c10::DeviceType device = c10::kCPU);

}  // namespace dtensor::cases
