// MPI processes of a pipeline that fail: every rank reports the reason, and none keeps waiting.
#include <gtest/gtest.h>

#include "support/mpirun.h"

namespace dtensor::test {
namespace {

const std::filesystem::path program = sibling_program("test_mpi_pipeline");

class PipelineMpiFailure : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(program)) GTEST_SKIP() << "built without MPI";
  }
};

TEST_F(PipelineMpiFailure, StageExceptionIsReportedOnAllRanks) {
  const ProcessResult out = mpirun(3, program, "throw");
  EXPECT_NE(out.status, 0);
  EXPECT_TRUE(out.in_time);
  for (const int rank : {0, 1})
    EXPECT_NE(rank_line(out.output, rank).find("no more of this"), std::string::npos) << out.output;
  // If several ranks would report the same text, only the first one reports it.
  const std::string last = rank_line(out.output, 2);
  EXPECT_TRUE(last.empty() || last.find("pipeline: in 1F2: no more of this") != std::string::npos) << out.output;
}

TEST_F(PipelineMpiFailure, KilledRankEndsTheOtherRanks) {
  const ProcessResult out = mpirun(3, program, "kill");
  EXPECT_NE(out.status, 0);
  EXPECT_TRUE(out.in_time);
  EXPECT_NE(out.output.find("rank 1"), std::string::npos) << out.output;
  for (const int rank : {0, 2}) {  // A rank that mpirun ends during computation reports nothing.
    const std::string line = rank_line(out.output, rank);
    EXPECT_TRUE(line.empty() || line.find("waits in recv") != std::string::npos) << out.output;
  }
}

}  // namespace
}  // namespace dtensor::test
