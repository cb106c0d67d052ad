// A step in a BitIdentical scope needs at most 10% more memory than an ordinary one, with experts 11%.
#include <gtest/gtest.h>

#include "bit_identical/layouts.h"
#include "dtensor/debug.h"

namespace dtensor::test {
namespace {

std::int64_t peak_of(const train::Options& options) {
  std::int64_t bytes = 0;
  run_local(static_cast<int>(options.mesh->size()), [&](const Communicator& world) {
    const MemoryTimeline memory;
    train::train_on_mesh(world, options, corpus_of_layouts(), {});
    if (world.rank() == 0) bytes = memory.peak().bytes;
  });
  return bytes;
}

void expect_peaks(const std::vector<TrainLayout>& layouts, double most) {
  for (const auto& layout : layouts) {
    if (layout.refused) continue;
    auto options = layout.options;
    options.bit_identical = false;
    const auto ordinary = peak_of(options);
    options.bit_identical = true;
    const auto scoped = peak_of(options);
    EXPECT_LE(static_cast<double>(scoped) / static_cast<double>(ordinary), most) << layout.name;
  }
}

train::Options wide_model() {
  auto options = same_bits_options();
  options.hidden = 128, options.batch = 8;
  return options;
}

TEST(BitIdenticalMemory, PeakIsNearThatOfOrdinarySteps) { expect_peaks(layouts_of(wide_model(), 2), 1.1); }

// Backward gathers weights of experts again.
TEST(BitIdenticalMemory, PeakOfExpertsIsNearThatOfOrdinarySteps) {
  auto options = wide_model();
  options.experts.emplace().experts = 4;
  options.layers = 2;
  expect_peaks(expert_layouts_of(options, 2), 1.11);
}

}  // namespace
}  // namespace dtensor::test
