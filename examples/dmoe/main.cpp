// A dropless mixture of experts with expert and data parallelism, compared with its formulas in ATen on one device.
// Prints the differences of outputs, gradients, norms and parameters over three steps with clipping and AdamW.
//
//   dmoe                    two thread ranks
//   dmoe --ranks 4
//   mpirun -n 2 dmoe        processes
//
// Exit status: 0; 1 if a variant differs from the formulas.
#include <ATen/ATen.h>

#include <atomic>
#include <cstdio>

#include "dtensor/launch.h"
#include "launch_flags.h"
#include "twin.h"

namespace {

bool compare(const dtensor::Communicator& world, const at::TensorOptions& options) {
  const auto reference = dmoe::run(world, dmoe::Variant::one_device, options);
  const auto dtype = options.dtype().toScalarType();
  const bool shows = world.rank() == 0;
  if (shows) {
    std::printf("%s, %d ranks (norm of the first step %.6g, bound %.0e)\n%-30s %10s %10s %10s %10s\n",
                c10::toString(dtype), world.size(), reference.norms[0], dmoe::bound(dtype), "relative difference of",
                "output", "gradient", "norm", "parameter");
  }
  bool equal = true;
  for (const auto form : dmoe::distributed_variants()) {
    const auto d = dmoe::difference(dmoe::run(world, form, options), reference);
    if (shows) {
      std::printf("%-30s %10.1e %10.1e %10.1e %10.1e\n", dmoe::name_of(form).c_str(), d.output, d.gradient, d.norm,
                  d.parameter);
    }
    equal = equal && d.largest() <= dmoe::bound(dtype);
  }
  return equal;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares a dropless MoE layer in each distributed variant with formulas in plain ATen.", "dmoe");
  std::string device;
  if (const auto status = launch_flags::parse(app, argc, argv, &device)) return *status;
  std::atomic<bool> equal{true};
  const auto once = [&](const dtensor::Communicator& world) {
    const auto on = device_flag::of(device, world);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      if (!compare(world, at::TensorOptions(dtype).device(on))) equal = false;
    }
  };
  const int status = dtensor::launch(argc, argv, [&](const dtensor::Communicator& world) {
    world.size() == 1 ? dtensor::run_local(2, once) : once(world);
  });
  return status != 0 ? status : equal ? 0 : 1;
}
