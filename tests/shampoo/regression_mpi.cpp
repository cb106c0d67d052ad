// The Shampoo experiment under mpirun, on every layout of the world's size.
#include <ATen/ATen.h>

#include <cstdio>

#include "dtensor/launch.h"
#include "shampoo/regression.h"

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    const shampoo::Experiment exact{.options = shampoo::rare_roots(), .dtype = at::kDouble, .steps = 50};
    const auto reference = shampoo::train_on_one_device(exact);
    for (const shampoo::MeshLayout& layout : shampoo::layouts(world.size())) {
      const double deviation = shampoo::deviation(shampoo::train(world, layout, exact), reference);
      TORCH_CHECK(deviation < 1e-8, layout.name, ": expected a deviation below 1e-8 from one device, got ", deviation);
      if (world.rank() == 0) std::printf("ok %s (%s)\n", layout.name.c_str(), world.backend_name());
    }
  });
}
