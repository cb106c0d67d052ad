// A dry run predicts what the run on thread ranks does: number and bytes of collectives exactly, and the peak of
// memory.
#include <gtest/gtest.h>

#include "dry_run/random_runs.h"
#include "support/draws.h"

namespace dry {
namespace {

// A block that is recomputed is used before and after the unit of its experts, so both are gathered together.
TEST(DryRun, PredictsGatheredUnitsOfRecomputedExperts) {
  Options options;
  options.mesh = train::MeshShape{.shard = 2, .tp = 2};
  options.steps = options.layers = 2, options.batch = 8, options.seq = 64, options.device = "cpu";
  options.bf16 = options.checkpoint_activations = options.sequence_parallel = true;
  options.experts.emplace().ep = 2;
  std::vector<train::RankMemory> measured;
  dtensor::run_local(4, [&](const dtensor::Communicator& world) {
    train::MemoryUse memory;
    train::train_on_mesh(world, options, corpus(), {}, &memory);
    if (world.rank() == 0) measured = memory.ranks();
  });
  EXPECT_EQ(train::predict_memory(options, corpus(), 4), measured);
}

void predicts_collectives_and_peak() {
  const auto options = any_options(meshes());
  const auto rank = *rc::gen::inRange(0, static_cast<int>(options.mesh->size()));
  const auto reports = compare(options, corpus(), rank);
  RC_LOG() << "rank " << rank << " " << text(options) << "\npredicted\n"
           << reports.predicted.table() << "measured\n"
           << reports.measured.table();
  RC_ASSERT(difference(options, reports) == "");
}

TEST(DryRun, PredictsCollectivesAndPeakOfTrain) {
  dtensor::test::check_property("DryRun.PredictsCollectivesAndPeakOfTrain", predicts_collectives_and_peak, 12);
}

}  // namespace
}  // namespace dry
