// The key-value store of the rendezvous, and how processes connect.
#include "comm/socket/rendezvous/store.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "comm/launch/launch_flags.h"
#include "comm/socket/rendezvous/environment.h"
#include "comm/socket/rendezvous/rendezvous.h"
#include "comm/socket/stream.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using std::chrono::milliseconds;

RendezvousOptions rendezvous_options_at(int port, int rank, int size, int timeout = 20000) {
  return {"127.0.0.1", port, rank, size, 7, milliseconds(timeout)};
}

int free_port() { return port_of(listen_tcp(0)); }

// Every rank of a world puts a value and gets the values of all ranks.
void expect_exchange(int port, int size) {
  std::vector<std::thread> ranks;
  std::vector<std::string> received(size);
  for (int r = size - 1; r >= 0; --r) {
    ranks.emplace_back([&received, port, size, r] {
      Store store(rendezvous_options_at(port, r, size));
      store.put("word " + std::to_string(r), std::string(r * 300, 'a'));
      for (int i = 0; i < size; ++i) received[r] += std::to_string(store.get("word " + std::to_string(i)).size()) + " ";
    });
  }
  for (auto& t : ranks) t.join();
  std::string expected;
  for (int i = 0; i < size; ++i) expected += std::to_string(i * 300) + " ";
  for (const auto& h : received) EXPECT_EQ(h, expected);
}

TEST(SocketStore, EveryRankGetsWhatTheOthersPut) { expect_exchange(free_port(), 4); }

TEST(SocketStore, SkipsAnotherServiceOnThePort) {
  const Stream other = listen_tcp(0);  // accepts connections and never answers
  expect_exchange(port_of(other), 2);
}

// Two jobs of one size with neighboring ports do not read each other's values.
TEST(SocketStore, SkipsAnotherJob) {
  const int port = free_port();
  RendezvousOptions other = rendezvous_options_at(port, 0, 2);
  other.job = 8;
  Store(other).put("word 0", "of another job");
  expect_exchange(port, 2);
}

TEST(SocketStore, TimeoutNamesTheAddress) {
  const int port = free_port();
  try {
    Store(rendezvous_options_at(port, 1, 2, 300)).get("word");
    ADD_FAILURE();
  } catch (const CommError& e) {
    EXPECT_NE(std::string(e.what()).find("127.0.0.1:" + std::to_string(port)), std::string::npos);
  }
}

TEST(SocketRendezvous, TimeoutNamesMissingRanks) {
  try {
    rendezvous(rendezvous_options_at(free_port(), 0, 2, 300));
    ADD_FAILURE();
  } catch (const CommError& e) {
    EXPECT_NE(std::string(e.what()).find("for rank 1 to connect"), std::string::npos) << e.what();
  }
}

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

// A program may call launch() any number of times, each with a new job, although there are ten ports.
TEST(SocketStore, ServesAnyNumberOfJobsInSequence) {
  const int port = free_port();
  for (std::uint64_t job = 1; job <= 12; ++job) {
    RendezvousOptions place = rendezvous_options_at(port, 0, 2);
    place.job = job;
    Store first(place);
    place.rank = 1;
    first.put("word", std::to_string(job));
    EXPECT_EQ(Store(place).get("word"), std::to_string(job));
  }
}

// Simulates a host behind a firewall: a full connection queue does not answer.
TEST(SocketStore, UnresponsiveHostTimesOut) {
  const Stream silent(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(silent.fd(), name, sizeof address), 0);
  ASSERT_EQ(listen(silent.fd(), 0), 0);
  address.sin_port = htons(static_cast<std::uint16_t>(port_of(silent)));
  std::vector<Stream> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    (void)connect(waiting.back().fd(), name, sizeof address);
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(Store(rendezvous_options_at(port_of(silent), 1, 2, 300)).get("word"), CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
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

}  // namespace
}  // namespace dtensor::sockets
