// The layouts of a number of processes, under mpirun or on sockets.
#include <cstdio>

#include "bit_identical/layouts.h"
#include "dtensor/launch.h"

int main(int argc, char** argv) {
  using namespace dtensor::test;
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    const auto check = [&](const std::vector<TrainLayout>& layouts, const train::Options& options) {
      const auto expected = train::train_on_one_device(options, corpus_of_layouts());
      for (const auto& layout : layouts) {
        check_layout(world, layout, expected);
        if (world.rank() == 0) std::printf("ok %s (%s)\n", layout.name.c_str(), world.backend_name());
      }
    };
    auto options = same_bits_options();
    check(layouts_of(options, world.size()), options);
    options.layers = 2, options.experts.emplace().experts = 4;
    check(expert_layouts_of(options, world.size()), options);
  });
}
