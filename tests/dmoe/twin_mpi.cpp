// Compares every variant with one device, between processes.
#include <ATen/ATen.h>

#include <cstdio>

#include "dmoe/twin.h"
#include "dtensor/launch.h"

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto reference = dmoe::run(world, dmoe::Variant::one_device, dtype);
      for (const auto form : dmoe::distributed_variants()) {
        const double apart = dmoe::difference(dmoe::run(world, form, dtype), reference).largest();
        TORCH_CHECK(apart <= dmoe::bound(dtype), dmoe::name_of(form), ", ", dtype, ": differs by ", apart);
        if (world.rank() == 0)
          std::printf("ok %s, %s (%s)\n", dmoe::name_of(form).c_str(), c10::toString(dtype), world.backend_name());
      }
    }
  });
}
