// The layouts of a number of processes, under mpirun or on sockets.
#include <cstdio>

#include "bit_identical/layouts.h"
#include "dtensor/launch.h"

int main(int argc, char** argv) {
  using namespace dtensor::test;
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    const auto options = same_bits_options();
    const auto expected = train::train_on_one_device(options, corpus_of_layouts());
    for (const auto& layout : layouts_of(options, world.size())) {
      check_layout(world, layout, expected);
      if (world.rank() == 0) std::printf("ok %s (%s)\n", layout.name.c_str(), world.backend_name());
    }
  });
}
