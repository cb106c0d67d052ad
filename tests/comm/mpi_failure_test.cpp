// Failures of MPI processes: runs programs that fail under mpirun, and looks at what each rank said and how they ended.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "comm/fixture.h"

namespace dtensor::test {
namespace {

struct Ended {
  int status = -1;
  std::string output;
  bool in_time = false;
};

std::filesystem::path program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "test_mpi_comm";
}

Ended mpirun(int ranks, const std::string& name) {
  const std::string command =
      "ASAN_OPTIONS=detect_leaks=0 "  // OpenMPI keeps what it allocates
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
      "OMPI_MCA_hwloc_base_binding_policy=none timeout -k 1 60 mpirun -n " +
      std::to_string(ranks) + " " + program().string() + " --case '" + name + "' 2>&1";
  const auto begin = std::chrono::steady_clock::now();
  Ended out;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) out.output += buffer;
  out.status = pclose(pipe);
  out.in_time = std::chrono::steady_clock::now() - begin < std::chrono::seconds(50);  // not killed by timeout(1)
  return out;
}

// The line that a rank printed, by its beginning.
std::string line_of(const std::string& output, int rank) {
  const std::string head = "rank " + std::to_string(rank) + ": ";
  for (std::size_t at = 0; at < output.size(); at = output.find('\n', at) + 1) {
    if (output.compare(at, head.size(), head) == 0) return output.substr(at, output.find('\n', at) - at);
    if (output.find('\n', at) == std::string::npos) break;
  }
  return "";
}

class MpiFailure : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program())) GTEST_SKIP() << "built without MPI";
  }
  // Every rank in `ranks` says all of `parts`, and the job ends with an error.
  void ends(const std::string& name, std::vector<int> ranks, std::vector<std::string> parts) {
    const Ended out = mpirun(3, name);
    EXPECT_NE(out.status, 0) << name;
    EXPECT_TRUE(out.in_time) << name;
    for (int r : ranks) {
      const std::string line = line_of(out.output, r);
      for (const auto& part : parts)
        EXPECT_NE(line.find(part), std::string::npos) << name << ", rank " << r << ":\n" << out.output;
    }
  }
};

TEST_F(MpiFailure, NoneIsStatusZero) {
  const Ended out = mpirun(3, "fine");
  EXPECT_EQ(out.status, 0) << out.output;
  EXPECT_EQ(out.output, "");
}

TEST_F(MpiFailure, AThrowingRankEndsAllWithItsMessage) { ends("throw", {0, 1, 2}, {"the disk is full"}); }

TEST_F(MpiFailure, ARankThatReturned) {
  ends("skip", {0, 2}, {"rank 1 returned from its function", "all_reduce #1 (sum, Float [4])"});
}

TEST_F(MpiFailure, ARankThatIsBehind) { ends("behind", {0, 1, 2}, {"disagree", "rank 1 called barrier #1"}); }

TEST_F(MpiFailure, ARankThatDoesNotCome) {
  ends("stuck", {0, 2}, {"timeout after 1500 ms", "waits in all_reduce #1 (sum, Float [4]) on {0, 1, 2} for rank 1"});
}

TEST_F(MpiFailure, Shapes) {
  ends("shapes", {0, 1, 2}, {"disagree", "rank 1 called all_reduce #1 (sum, Float [5])"});
  ends("big shapes", {0, 1, 2}, {"disagree", "rank 1 called all_reduce #1 (sum, Float [500000])"});
}

TEST_F(MpiFailure, AMessageThatDoesNotFit) { ends("message", {0, 1, 2}, {"rank 0 called send", "[300000]", "[3]"}); }

TEST_F(MpiFailure, AbortCarriesTheReason) { ends("abort", {0, 1, 2}, {"rank 1 aborted: out of data"}); }

TEST_F(MpiFailure, AKilledRank) {
  const Ended out = mpirun(3, "kill");
  EXPECT_NE(out.status, 0);
  EXPECT_TRUE(out.in_time);
  EXPECT_NE(out.output.find("rank 1"), std::string::npos) << out.output;
  for (int r : {0, 2})
    EXPECT_NE(line_of(out.output, r).find("waits in all_reduce #2"), std::string::npos) << out.output;
}

}  // namespace
}  // namespace dtensor::test
