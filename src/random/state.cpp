// Seed and counter of a world, kept in its WorldState.
#include "random/state.h"

#include <c10/util/Exception.h>

#include "dtensor/random.h"
#include "mesh/world_state.h"

namespace dtensor {
namespace {

WorldState& state_of(const DeviceMesh& mesh) {
  TORCH_CHECK(mesh, "the random state belongs to a mesh's world: this DeviceMesh is empty");
  return impl_of(mesh)->state();
}

}  // namespace

RandomKey next_random_key(const MeshImpl& mesh) {
  const auto state = mesh.state().advance_rng();
  return {state.seed, state.counter};
}

void manual_seed(const DeviceMesh& mesh, std::uint64_t seed) { state_of(mesh).set_rng({seed, 0}); }
RngState get_rng_state(const DeviceMesh& mesh) { return state_of(mesh).rng(); }
void set_rng_state(const DeviceMesh& mesh, RngState state) { state_of(mesh).set_rng(state); }

}  // namespace dtensor
