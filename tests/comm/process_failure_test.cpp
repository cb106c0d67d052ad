// Failures of processes: runs failing programs under mpirun and over sockets, and checks their output and exit status.
#include "support/mpirun.h"

#include "comm/fixture.h"

namespace dtensor::test {
namespace {

const std::filesystem::path program = sibling_program("test_mpi_comm");

struct Launcher {
  const char* name;
  ProcessResult (*run)(int ranks, const std::filesystem::path& program, const std::string& name);
};

class ProcessFailure : public ::testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program)) GTEST_SKIP() << "built without MPI";
  }
  // Expects that every rank in `ranks` prints all of `parts`, and that the job ends with an error.
  void ends(const std::string& name, std::vector<int> ranks, std::vector<std::string> parts) {
    const ProcessResult out = GetParam().run(3, program, name);
    EXPECT_NE(out.status, 0) << name;
    EXPECT_TRUE(out.in_time) << name;
    for (int r : ranks) {
      const std::string line = rank_line(out.output, r);
      for (const auto& part : parts)
        EXPECT_NE(line.find(part), std::string::npos) << name << ", rank " << r << ":\n" << out.output;
    }
  }
};

TEST_P(ProcessFailure, SuccessIsStatusZero) {
  const ProcessResult out = GetParam().run(3, program, "fine");
  EXPECT_EQ(out.status, 0) << out.output;
  EXPECT_EQ(out.output, "");
}

// It has the variables of the rank's launcher.
TEST_P(ProcessFailure, ProcessStartedByARankDoesNotJoin) {
  const ProcessResult out = GetParam().run(3, program, "child");
  EXPECT_EQ(out.status, 0) << out.output;
  EXPECT_NE(out.output.find("=1, "), std::string::npos) << out.output;
  EXPECT_NE(out.output.find("=3), started this process, which is no rank"), std::string::npos) << out.output;
}

TEST_P(ProcessFailure, ThrowingRankEndsAllWithItsMessage) { ends("throw", {0, 1, 2}, {"the disk is full"}); }

TEST_P(ProcessFailure, RankReturnedEarly) {
  ends("skip", {0, 2}, {"rank 1 returned from its function", "all_reduce #1 (sum, Float [4])"});
}

TEST_P(ProcessFailure, RankIsOneCollectiveBehind) {
  ends("behind", {0, 1, 2}, {"disagree", "rank 1 called barrier #1"});
}

TEST_P(ProcessFailure, RankCaughtItsOwnError) {
  ends("caught", {0, 1, 2}, {"rank 1 failed: index out of range in self", "; then ranks disagree", "called barrier"});
}

TEST_P(ProcessFailure, RankDoesNotArrive) {
  ends("stuck", {0, 2}, {"timeout after 1500 ms", "waits in all_reduce #1 (sum, Float [4]) on {0, 1, 2} for rank 1"});
}

TEST_P(ProcessFailure, MismatchedShapesEndAllRanks) {
  ends("shapes", {0, 1, 2}, {"disagree", "rank 1 called all_reduce #1 (sum, Float [5])"});
  ends("big shapes", {0, 1, 2}, {"disagree", "rank 1 called all_reduce #1 (sum, Float [500000])"});
}

TEST_P(ProcessFailure, MismatchedListsEndAllRanks) {
  ends("lists", {0, 1, 2},
       {"disagree", "rank 0 called all_reduce #1 (sum, Float 2 tensors of 20000, 100000 elements",
        "rank 1 called all_reduce #1 (sum, Float 2 tensors of 100000, 20000 elements"});
}

TEST_P(ProcessFailure, MismatchedMessageEndsAllRanks) {
  ends("message", {0, 1, 2}, {"rank 0 called send", "[300000]", "[3]"});
}

TEST_P(ProcessFailure, TwoThreadsOfARankInOneCommunicatorEndAllRanks) {
  ends("two threads", {0, 1, 2}, {"expected one thread of rank 1", "all_reduce #2 (sum, Float [4])"});
}

TEST_P(ProcessFailure, AbortCarriesTheReason) { ends("abort", {0, 1, 2}, {"rank 1 aborted: out of data"}); }

// Variables of another MPI's mpiexec, while this MPI reports one process.
TEST(MpiFailure, RejectsVariablesOfAnotherLauncher) {
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "built without MPI";
  for (const std::string set : {"PMI_RANK=0 PMI_SIZE=2", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2"}) {
    const ProcessResult out = run_shell("env " + set + " " + program.string() + " --case fine");
    EXPECT_EQ(WEXITSTATUS(out.status), 2) << out.output;
    EXPECT_NE(out.output.find("of 2, but MPI says rank 0 of 1"), std::string::npos) << out.output;
  }
}

TEST_P(ProcessFailure, ReceiveAgainstCollectiveIsADeadlock) {
  ends("recv", {0, 1, 2}, {"ranks wait for each other", "recv #1 (from 1, tag 0", "all_reduce #1", "last of rank"});
}

TEST_P(ProcessFailure, PollingReceivesTheFailure) {
  ends("polls", {0}, {"rank 1 returned from its function", "recv #1 (from 1"});
}

TEST(SocketFailure, JobMayLaunchTwice) {
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "built without MPI";
  const ProcessResult out = run_processes(3, program, "twice");
  EXPECT_EQ(out.status, 0) << out.output;
}

// The main thread of one rank and helper threads of the others wait for ranks that arrive later.
TEST_P(ProcessFailure, WaitingHelperThreadsAreNotADeadlock) {
  const ProcessResult out = GetParam().run(3, program, "helpers");
  EXPECT_EQ(out.status, 0) << out.output;
}

TEST_P(ProcessFailure, DeadlockAcrossCommunicatorsIsDetected) {
  ends("axes", {0, 1, 2}, {"ranks wait for each other", "barrier #1 on tp {0, 1}", "all_reduce #1"});
}

TEST_P(ProcessFailure, ErrorOfEveryRankIsPrintedOnce) {
  const ProcessResult out = GetParam().run(3, program, "everybody");
  EXPECT_NE(out.status, 0);
  const auto first = out.output.find("no such file");
  EXPECT_NE(rank_line(out.output, 0).find("no such file"), std::string::npos) << out.output;
  EXPECT_EQ(out.output.find("no such file", first + 1), std::string::npos) << out.output;
  EXPECT_EQ(out.output.find("frame #"), std::string::npos) << out.output;  // no backtrace by default
}

TEST_P(ProcessFailure, BacktraceFollowsTheErrorLineOnRequest) {
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  const ProcessResult with = GetParam().run(3, program, "everybody");
  unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_NE(with.status, 0);
  const auto frame = with.output.find("rank 0:   frame #0: ");
  ASSERT_NE(frame, std::string::npos) << with.output;
  EXPECT_LT(with.output.find("no such file"), frame) << with.output;  // after the error line
}

TEST_P(ProcessFailure, SignalHandlerOfTheProgramIsKept) {
  for (int trial = 0; trial < 3; ++trial) {
    const ProcessResult out = GetParam().run(3, program, "own handler");
    EXPECT_EQ(out.status, 0) << out.output;
    for (int r = 0; r < 3; ++r) {
      EXPECT_NE(out.output.find("rank " + std::to_string(r) + " saved"), std::string::npos) << out.output;
    }
  }
}

TEST_P(ProcessFailure, InterruptedRunEndsAllRanks) {
  const ProcessResult out = GetParam().run(3, program, "interrupted");
  EXPECT_NE(out.status, 0);
  EXPECT_TRUE(out.in_time);
  // One rank suffices: on a loaded machine another rank may not receive the message in time.
  EXPECT_NE(out.output.find("the run was interrupted"), std::string::npos) << out.output;
}

TEST_P(ProcessFailure, KilledRankEndsAllRanks) {
  const ProcessResult out = GetParam().run(3, program, "kill");
  EXPECT_NE(out.status, 0);
  EXPECT_TRUE(out.in_time);
  EXPECT_NE(out.output.find("rank 1"), std::string::npos) << out.output;
  for (int r : {0, 2}) EXPECT_NE(rank_line(out.output, r).find("in all_reduce #2"), std::string::npos) << out.output;
}

INSTANTIATE_TEST_SUITE_P(, ProcessFailure,
                         ::testing::Values(Launcher{"Mpi", mpirun}, Launcher{"Sockets", run_processes}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dtensor::test
