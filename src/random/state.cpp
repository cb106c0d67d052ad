// Seed and counter of a world, stored in its WorldState.
#include "random/state.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/random.h"
#include "internal/random_draws.h"
#include "internal/scoped_value.h"
#include "mesh/world_state.h"

namespace dtensor {
namespace {

WorldState& state_of(const DeviceMesh& mesh) {
  TORCH_CHECK(mesh, "random state: expected a mesh, got an empty DeviceMesh");
  return impl_of(mesh)->state();
}

}  // namespace

RandomKey next_random_key(const MeshImpl& mesh) {
  const auto state = mesh.state().advance_rng();
  ScopedValue<RandomDraws*>::for_each([&](RandomDraws* draws) {
    draws->note(DeviceMesh(c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&mesh))), state);
  });
  return {state.seed, state.counter};
}

void manual_seed(const DeviceMesh& mesh, std::uint64_t seed) { state_of(mesh).set_rng({seed, 0}); }
RngState get_rng_state(const DeviceMesh& mesh) { return state_of(mesh).rng(); }
void set_rng_state(const DeviceMesh& mesh, RngState state) { state_of(mesh).set_rng(state); }

RandomDraws::Record::Record(RandomDraws& draws) : scope_(open_scope(&draws, Recompute::unchanged)) {}

void RandomDraws::note(const DeviceMesh& mesh, RngState before) {
  const auto known = [&](const auto& entry) { return &state_of(entry.first) == &state_of(mesh); };
  if (std::none_of(before_.begin(), before_.end(), known)) before_.emplace_back(mesh, before);
}

RandomDraws::Replay::Replay(const RandomDraws& draws) {
  for (const auto& [mesh, before] : draws.before_) {
    now_.emplace_back(mesh, get_rng_state(mesh));
    set_rng_state(mesh, before);
  }
}

RandomDraws::Replay::~Replay() {
  for (const auto& [mesh, now] : now_) set_rng_state(mesh, now);
}

MicrobatchRandomScope::MicrobatchRandomScope(Range range) : scope_(open_scope(range, Recompute::restored)) {}

MicrobatchRandomScope::Range MicrobatchRandomScope::current() {
  const auto* rows = ScopedValue<Range>::current();
  return rows == nullptr ? Range{} : *rows;
}

}  // namespace dtensor
