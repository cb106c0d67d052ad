// Divergences and pairs of collectives between processes, over MPI and sockets in turn. Every test run has a few jobs;
// DTENSOR_FAULTS=40 runs more.
#include <gtest/gtest.h>

#include <random>

#include "faults/calls.h"
#include "faults/divergence.h"
#include "faults/errors.h"
#include "support/folder.h"
#include "support/mpirun.h"

namespace dtensor::test {
namespace {

class Campaign : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program_)) GTEST_SKIP() << "built without MPI";
  }
  ProcessResult start(int ranks, const std::string& arguments) {
    const auto sockets = "bash " + source_path("scripts/processes.sh") + " ";
    const auto launcher = (jobs_++ % 2 == 0 ? "mpirun -n " : sockets) + std::to_string(ranks) + " ";
    return run_shell(launcher + program_.string() + " " + arguments);
  }
  ProcessResult run(int ranks, const std::string& arguments) {
    const auto out = start(ranks, arguments);
    EXPECT_NE(out.status, 0) << arguments;
    EXPECT_TRUE(out.in_time) << arguments << out.output;
    EXPECT_FALSE(contains(out.output, "timeout after")) << arguments << out.output;
    return out;
  }

  std::filesystem::path program_ = sibling_program("test_mpi_faults");
  std::mt19937 draw_{2026};
  int jobs_ = 0;
};

TEST_F(Campaign, DivergencesAreReportedBetweenProcesses) {
  const auto kinds = divergences();
  const auto trials = static_cast<std::size_t>(campaign(4));
  for (std::size_t i = 0; i < std::min(trials, kinds.size()); ++i) {
    const auto at = trials < kinds.size() ? draw_() % kinds.size() : i;
    const int ranks = 2 + static_cast<int>(i / 2 % 2);
    const auto out = run(ranks, "--divergence " + std::to_string(at));
    for (int r = 0; r < ranks; ++r) {
      const auto line = rank_line(out.output, r);
      for (const auto& part : {std::string("their operators differ, first in call"), kinds[at].says,
                               std::string("rank 1 called"), std::string("block.layer")}) {
        EXPECT_TRUE(contains(line, part)) << kinds[at].name << " lacks " << part << ":\n" << out.output;
      }
    }
  }
}

TEST_F(Campaign, PairsOfCollectivesAreReportedBetweenProcesses) {
  const auto calls = comm_calls();
  for (int i = 0; i < campaign(5); ++i) {
    const auto usual = draw_() % calls.size();
    auto astray = draw_() % (calls.size() - 1);
    astray += astray >= usual ? 1 : 0;
    const auto out = run(2 + i / 2 % 2, "--pair " + std::to_string(usual) + " " + std::to_string(astray));
    const auto what = calls[usual].name + " against " + calls[astray].name + ":\n" + out.output;
    EXPECT_TRUE(contains(out.output, "rank 1")) << what;
    EXPECT_TRUE(contains(out.output, calls[usual].says) || contains(out.output, calls[astray].says)) << what;
  }
}

// Ranks that cannot detect the index get the error of the rank that does.
TEST_F(Campaign, IndexOutOfRangeEndsAllProcessesWithTheReason) {
  const auto out = run(2, "--index");
  for (int r = 0; r < 2; ++r) {
    const auto line = rank_line(out.output, r);
    EXPECT_TRUE(contains(line, "index 9 is out of bounds for dimension 0 with size 5")) << out.output;
    EXPECT_TRUE(contains(line, "in aten::gather(")) << out.output;
  }
}

// Other ranks wait without a limit for a disk, but not for a process that has stopped.
TEST_F(Campaign, RankThatStopsInACheckpointEndsAll) {
  const char* calls[] = {"save", "load", "save_async"};
  for (int i = 0; i < std::min(campaign(2), 6); ++i) {
    const Folder folder;
    const auto out = start(3, c10::str("--disk stop ", calls[i % 3], " ", folder / "checkpoint"));
    EXPECT_NE(out.status, 0);
    EXPECT_TRUE(out.in_time) << out.output;
    for (int r : {0, 2}) {
      const auto line = rank_line(out.output, r);
      EXPECT_TRUE(contains(line, "timeout after 1500 ms without a heartbeat of rank 1 ("))
          << calls[i % 3] << out.output;
    }
  }
}

TEST_F(Campaign, RankWithASlowDiskIsAwaited) {
  const char* calls[] = {"load", "save", "save_async"};
  for (int i = 0; i < std::min(campaign(2), 6); ++i) {
    const Folder folder;
    const auto out = start(2, c10::str("--disk slow ", calls[i % 3], " ", folder / "checkpoint"));
    EXPECT_EQ(out.status, 0) << calls[i % 3] << out.output;
  }
}

}  // namespace
}  // namespace dtensor::test
