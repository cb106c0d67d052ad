// Address, job and secret of a rendezvous, from the environment.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "comm/launch/launch_flags.h"
#include "comm/socket/rendezvous/environment.h"
#include "comm/socket/rendezvous/secret.h"

namespace dtensor::sockets {
namespace {

using std::chrono::milliseconds;

TEST(SocketEnvironment, SlurmFirstHostAndPortFromJobId) {
  setenv("SLURM_STEP_NODELIST", "node[07-09,12],gpu3", 1);
  setenv("SLURM_JOB_ID", "123", 1);
  LauncherEnvironment e{"srun", 1, 4, false, 0};
  const RendezvousOptions place = rendezvous_options(e, milliseconds(1));
  EXPECT_EQ(place.host, "node07");
  EXPECT_GE(place.port, 20000);
  setenv("SLURM_JOB_ID", "124", 1);
  EXPECT_NE(rendezvous_options(e, milliseconds(1)).job, place.job);
  setenv("SLURM_STEP_NODELIST", "a,b", 1);
  EXPECT_EQ(rendezvous_options(e, milliseconds(1)).host, "a");
  unsetenv("SLURM_STEP_NODELIST"), unsetenv("SLURM_JOB_ID");
  e.launcher = "torchrun";
  EXPECT_THROW(rendezvous_options(e, milliseconds(1)), LaunchError);
  setenv("MASTER_ADDR", "localhost", 1), setenv("MASTER_PORT", "x", 1);
  EXPECT_THROW(rendezvous_options(e, milliseconds(1)), LaunchError);
  unsetenv("MASTER_ADDR"), unsetenv("MASTER_PORT");
}

TEST(SocketEnvironment, SlurmFirstHostOfSeveralRanges) {
  const LauncherEnvironment e{"srun", 1, 4, false, 0};
  for (const auto& [list, first] : {std::pair("rack[2-3,7]_node[04-09],login", "rack2_node04"),
                                    std::pair("n[1,3]-ib", "n1-ib"), std::pair("login,n[1-2]", "login")}) {
    setenv("SLURM_STEP_NODELIST", list, 1);
    EXPECT_EQ(rendezvous_options(e, milliseconds(1)).host, first);
  }
  unsetenv("SLURM_STEP_NODELIST");
}

TEST(SocketEnvironment, SecretOfAVariableOrAFile) {
  const std::string file = testing::TempDir() + "dtensor_secret";
  std::ofstream(file) << "of a file\n";
  EXPECT_EQ(job_secret(), "");
  setenv("DTENSOR_SECRET", "of a variable", 1);
  EXPECT_EQ(job_secret(), "of a variable");
  setenv("DTENSOR_SECRET_FILE", file.c_str(), 1);
  EXPECT_THROW(job_secret(), LaunchError);
  unsetenv("DTENSOR_SECRET");
  EXPECT_EQ(job_secret(), "of a file");
  for (const char* content : {"", "\n\n"}) {
    std::ofstream(file) << content;
    EXPECT_THROW(job_secret(), LaunchError);
  }
  std::remove(file.c_str());
  EXPECT_THROW(job_secret(), LaunchError);
  unsetenv("DTENSOR_SECRET_FILE");
}

// Test case 2 of RFC 4231.
TEST(SocketEnvironment, DigestIsHmacSha256) {
  const Digest digest = keyed_digest("Jefe", "what do ya want for nothing?");
  EXPECT_EQ(digest[0], 0x5b);
  EXPECT_EQ(digest[1], 0xdc);
  EXPECT_EQ(digest[31], 0x43);
}

}  // namespace
}  // namespace dtensor::sockets
