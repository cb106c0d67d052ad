// A few trials of each campaign against checkpoints. tools/faults runs hundreds (docs/reliability.md).
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "faults/concurrent_saves.h"
#include "faults/corruptions.h"
#include "faults/errors.h"
#include "faults/headers.h"
#include "faults/kills.h"
#include "support/mpirun.h"

namespace dtensor::test {
namespace {

namespace fs = std::filesystem;
using namespace faults;

class Files : public testing::Test {
 protected:
  ~Files() override {
    for (const auto& entry : fs::directory_iterator(fs::temp_directory_path())) {
      if (entry.path().filename().string().starts_with(name_)) fs::remove_all(entry.path());
    }
  }
  const std::string name_ = "dtensor_faults_" + std::to_string(::getpid());
  const std::string folder_ = (fs::temp_directory_path() / name_).string();
  const std::string program_ = (sibling_program("").parent_path().parent_path() / "tools/faults").string();
};

TEST_F(Files, FinishedSavesSurviveKills) {
  for (const std::int64_t keep : {0, 2}) {
    const KillReport report = run_kills({program_, folder_, campaign(6), 2, keep, 512, 1});
    EXPECT_EQ(report.trials, campaign(6));
    EXPECT_TRUE(report.good()) << report.first_problem;
  }
}

// Usually one process is killed: its finished saves remain, and the other processes end and name the missing rank.
TEST_F(Files, KilledProcessEndsTheJobAndKeepsFinishedSaves) {
  for (const Backend over : {Backend::sockets, Backend::mpi}) {
    if (over == Backend::mpi && !fs::exists(sibling_program("test_mpi_faults"))) continue;  // built without MPI
    const KillReport report = run_kills({program_, folder_, campaign(1), 2, 2, 512, 16, over});
    EXPECT_EQ(report.trials, campaign(1));
    EXPECT_TRUE(report.good()) << to_string(over) << ": " << report.first_problem;
    EXPECT_EQ(report.one + report.launcher + report.all, report.trials);
  }
}

TEST_F(Files, EveryCorruptionIsDetected) {
  const CorruptionReport report = run_corruptions({folder_, campaign(300), 7});
  EXPECT_EQ(report.first_problem, "");
  EXPECT_EQ(report.by_class.size(), 11U);
  for (const auto& [what, count] : report.by_class) {
    EXPECT_GT(count.found, 0) << what;
    EXPECT_EQ(count.silent, 0) << what;
  }
}

TEST_F(Files, MaliciousHeadersAreRefused) {
  const HeaderReport report = run_headers({folder_, campaign(500), 3});
  EXPECT_EQ(report.trials, campaign(500));
  EXPECT_EQ(report.first_problem, "");
  EXPECT_GT(report.refused, 100);
}

TEST_F(Files, ConcurrentSavesLeaveOneValidCheckpoint) {
  const RivalReport report = run_rivals({program_, folder_, campaign(3), 2, 512});
  EXPECT_EQ(report.damaged + report.none + report.unclear, 0) << report.first_problem;
}

}  // namespace
}  // namespace dtensor::test
