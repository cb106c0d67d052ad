// The wiring check between processes.
#include <cstdio>

#include "dtensor/launch.h"
#include "wiring/report.h"

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    const std::int64_t half = world.size() / 2;
    for (const auto& shape : {std::vector<std::int64_t>{world.size(), 1, 1}, {half, 1, 2}, {1, 2, half}}) {
      const auto mesh = dtensor::init_device_mesh(world, at::kCPU, shape, {"replicate", "shard", "tp"});
      const auto report = wiring::check(mesh);
      TORCH_CHECK(report.ok, report.text);
      if (world.rank() == 0) std::printf("ok %s (%s)\n", mesh.str().c_str(), world.backend_name());
    }
  });
}
