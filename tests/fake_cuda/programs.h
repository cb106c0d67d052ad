// Random training programs on meshes of simulated devices. Each compares its results with one device.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dtensor/comm.h"

namespace dtensor::test::fake_cuda {

struct Program {
  std::string name;
  int ranks;
  std::function<void(const Communicator&)> run;
};

Program fsdp_program(std::uint64_t seed);
Program tensor_parallel_program(std::uint64_t seed);
Program pipeline_program(std::uint64_t seed);
Program context_parallel_program(std::uint64_t seed);
Program expert_parallel_program(std::uint64_t seed);

}  // namespace dtensor::test::fake_cuda
