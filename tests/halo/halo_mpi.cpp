// Graph halos between processes: random graphs against one part, rows of several dtypes, and an invalid send list.
#include <cstdio>

#include "cases.h"
#include "dtensor/launch.h"
#include "support/errors.h"

namespace {

using namespace dtensor;

void check_invalid_list(const Communicator& world) {
  const std::vector<at::Tensor> lists(world.size(), at::zeros({world.rank() == 1 ? 1 : 0}, at::kLong));
  const auto error = test::error_of([&] { GraphHalo(world, 0, lists); });
  TORCH_CHECK(error.find("GraphHalo: rank 1: the send list for rank 0: expected rows in [0, 0)") == 0, error);
}

}  // namespace

int main(int argc, char** argv) {
  return launch(argc, argv, [](Communicator world) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      test::halo::check_graph(world, seed);
      test::halo::check_rows(world, seed, seed % 2 == 0 ? at::kFloat : at::kBFloat16);
      TORCH_CHECK(!testing::Test::HasFailure(), "differs from one part: seed ", seed);
    }
    if (world.size() > 1) check_invalid_list(world);
    if (world.rank() == 0) std::printf("ok: 40 random graphs (%s)\n", world.backend_name());
  });
}
