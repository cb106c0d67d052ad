// Mixture of experts between processes: the reference layer with every dispatcher, and random layers on meshes of this
// number of ranks.
#include <cstdio>

#include "dtensor/launch.h"
#include "layer_cases.h"
#include "oracle.h"

namespace {

using namespace dtensor;

int check_layers(const Communicator& world) {
  int cases = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const auto c = test::layer::draw_case(seed);
    if (c.ranks() != world.size()) continue;
    const auto values = test::layer::draw_values(c);
    test::layer::expect_equal(test::layer::run_on(c, values, world), test::layer::run_regular(c, values), c);
    TORCH_CHECK(!testing::Test::HasFailure(), "differs from one device: ", c.str());
    ++cases;
  }
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  return launch(argc, argv, [](Communicator world) {
    oracle::check_all_variants(world);
    if (world.rank() == 0) std::printf("ok: the reference layer (%s)\n", world.backend_name());
    const int cases = check_layers(world);
    if (world.rank() == 0) std::printf("ok: %d random layers (%s)\n", cases, world.backend_name());
  });
}
