// One recorded call with one configuration of placements: runs on every rank of a mesh and is compared with one device.
#pragma once

#include <string>
#include <vector>

#include "aten_cases/case_file.h"
#include "dtensor/dtensor.h"

namespace dtensor::cases {

// Placements of the tensors of a case (FORMAT.md): R, S0, Sl, S0_first, Sl_first, P, 2d_S0_Sl, 2d_P_S0.
struct Config {
  std::string name;
  bool two_dims = false;
  bool first_only = false;  // The other tensors are Replicate.
  // Of a tensor with `ndim` dimensions, floating-point or not.
  Placements (*placements)(std::int64_t ndim, bool floating);
};
const std::vector<Config>& configs();

struct Outcome {
  enum class Kind { pass, wrong, raise, elsewhere };  // elsewhere: the device has no such call, even without DTensors.
  Kind kind = Kind::pass;
  std::string text;
};

// Configurations with different placements for this case; all-Replicate occurs once.
std::vector<const Config*> distinct_configs(const Case& c);

// Results of a call on one device, and the arguments that it writes.
struct Expected {
  std::vector<c10::IValue> results;
  std::vector<std::pair<std::string, c10::IValue>> mutated;
};
Expected recorded(const Case& c);
// Results of the call on regular tensors of that device type. Throws what the call throws.
Expected computed(const Case& c, c10::DeviceType device);

// Runs on this rank; throws Mismatch if the result differs.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void run_on_rank(const Case& c, const Config& config, const Communicator& world, const Expected& expected,
                 c10::DeviceType device = c10::kCPU);

// Runs on `ranks` thread ranks, with a timeout of one minute for each wait. Compares with the recorded results or, on
// other devices than the CPU, with computed ones.
Outcome run_case(const Case& c, const Config& config, int ranks = 4, c10::DeviceType device = c10::kCPU);

}  // namespace dtensor::cases
