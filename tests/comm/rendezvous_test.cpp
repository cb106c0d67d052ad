// How processes find each other over sockets, who is let in, and what is left afterwards.
#include "comm/socket/rendezvous/rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "comm/socket/rendezvous/join.h"
#include "comm/socket/stream.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using std::chrono::milliseconds;

int free_port() { return port_of(listen_tcp("127.0.0.1", 0).front()); }

// The same options for each rank of a job; a test changes those of some ranks.
std::vector<RendezvousOptions> job_at(int port, int size, int timeout = 20000) {
  std::vector<RendezvousOptions> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back({"127.0.0.1", port, r, size, 7, milliseconds(timeout), ""});
  return ranks;
}

// What a rank got: its peers, or an error.
struct Result {
  std::vector<Peer> peers;
  std::string error;
};

// Runs the rendezvous of all ranks on threads; later ranks first.
std::vector<Result> meet(const std::vector<RendezvousOptions>& ranks) {
  std::vector<Result> results(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = ranks.size(); i-- > 0;) {
    threads.emplace_back([&, i] {
      try {
        results[i].peers = rendezvous(ranks[i]);
      } catch (const CommError& e) {
        results[i].error = e.what();
      }
    });
  }
  for (auto& t : threads) t.join();
  return results;
}

// Each pair of ranks is connected with each other.
void expect_connected(const std::vector<Result>& results) {
  for (std::size_t a = 0; a < results.size(); ++a) ASSERT_EQ(results[a].error, "");
  for (std::size_t a = 0; a < results.size(); ++a) {
    for (std::size_t b = 0; b < results.size(); ++b) {
      if (a == b) continue;
      const Peer &to = results[a].peers[b], &from = results[b].peers[a];
      const std::string word = std::to_string(a) + " to " + std::to_string(b);
      ASSERT_TRUE(to.stream.write_all(word.data(), word.size()));
      std::string received(word.size(), '\0');
      ASSERT_TRUE(from.stream.read_all(received.data(), received.size()));
      EXPECT_EQ(received, word);
      EXPECT_TRUE(to.same_host);
      EXPECT_NE(to.address, "");
    }
  }
}

bool listens(const std::string& host, int port) { return connect_tcp(host, port, milliseconds(1000)).open(); }

TEST(SocketRendezvous, ConnectsEachPair) {
  for (const int size : {2, 3, 5}) expect_connected(meet(job_at(free_port(), size)));
}

TEST(SocketRendezvous, NothingListensAfterwards) {
  const int port = free_port();
  expect_connected(meet(job_at(port, 3)));
  for (int i = 0; i < kPorts; ++i) EXPECT_FALSE(listens("127.0.0.1", port + i));
}

TEST(SocketRendezvous, ListensOnTheAddressOfTheLauncherOnly) {
  const auto ranks = job_at(free_port(), 2);
  std::thread rank_0([&] { EXPECT_EQ(rendezvous(ranks[0]).size(), 2u); });
  while (!listens("127.0.0.1", ranks[0].port)) std::this_thread::yield();
  EXPECT_FALSE(listens("127.0.0.2", ranks[0].port));
  EXPECT_EQ(rendezvous(ranks[1]).size(), 2u);
  rank_0.join();
}

// Of a name, each address that this host has; of a foreign address, which a network may translate, all interfaces.
TEST(SocketRendezvous, ListensWhereANameLeads) {
  for (const char* host : {"localhost", "127.0.0.1", "192.0.2.1"}) {
    const auto listeners = listen_tcp(host, 0);
    ASSERT_FALSE(listeners.empty()) << host;
    EXPECT_TRUE(listens("127.0.0.1", port_of(listeners.front()))) << host;
    EXPECT_TRUE(listen_tcp(host, port_of(listeners.front())).empty()) << host << ": the port is in use";
  }
}

TEST(SocketRendezvous, SkipsAnotherServiceOnThePort) {
  const auto other = listen_tcp("127.0.0.1", 0);  // accepts connections and never answers
  expect_connected(meet(job_at(port_of(other.front()), 2)));
}

// Two jobs of one size with neighboring ports do not meet.
TEST(SocketRendezvous, SkipsAnotherJob) {
  const int port = free_port();
  auto other = job_at(port, 2);
  for (auto& rank : other) rank.job = 8;
  std::thread waits([&] { EXPECT_EQ(rendezvous(other[0]).size(), 2u); });
  while (!listens("127.0.0.1", port)) std::this_thread::yield();
  expect_connected(meet(job_at(port, 2)));
  EXPECT_EQ(rendezvous(other[1]).size(), 2u);
  waits.join();
}

// A program may call launch() any number of times, each with a new job, although there are ten ports.
TEST(SocketRendezvous, ServesAnyNumberOfJobsInSequence) {
  const int port = free_port();
  for (std::uint64_t job = 1; job <= 12; ++job) {
    auto ranks = job_at(port, 2);
    for (auto& rank : ranks) rank.job = job;
    expect_connected(meet(ranks));
  }
}

// After 5 s as a line of the log, and after the timeout as the error, on each rank that waits.
TEST(SocketRendezvous, WaitsAndTimeoutsNameTheMissingRanksOnAll) {
  auto ranks = job_at(free_port(), 4, 6000);
  ranks.erase(ranks.begin() + 2, ranks.end());
  testing::internal::CaptureStderr();
  for (const Result& result : meet(ranks)) {
    EXPECT_NE(result.error.find("rank 0 waited 6 s for ranks 2, 3 of 4 to connect"), std::string::npos) << result.error;
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rank 0: waits for ranks 2, 3 of 4 to connect (5 s so far)"), std::string::npos) << log;
  EXPECT_NE(log.find("rank 1: waits with rank 0 for ranks 2, 3 of 4 to connect"), std::string::npos) << log;
}

TEST(SocketRendezvous, TimeoutNamesTheAddressOfRankZero) {
  const auto ranks = job_at(free_port(), 2, 300);
  try {
    rendezvous(ranks[1]);
    ADD_FAILURE();
  } catch (const CommError& e) {
    EXPECT_NE(std::string(e.what()).find("127.0.0.1:" + std::to_string(ranks[1].port)), std::string::npos) << e.what();
  }
}

// No rank waits for the timeout: each error names the numbers.
TEST(SocketRendezvous, DifferentNumbersOfRanksAreAnErrorOnAll) {
  for (const auto& sizes : {std::vector{2, 3}, {3, 2}, {2, 3, 3}, {3, 4, 4, 4}}) {
    auto ranks = job_at(free_port(), static_cast<int>(sizes.size()));
    for (std::size_t r = 0; r < sizes.size(); ++r) ranks[r].size = sizes[r];
    for (const Result& result : meet(ranks)) {
      EXPECT_NE(result.error.find("different numbers of ranks: rank 0 is one of " + std::to_string(sizes[0])),
                std::string::npos)
          << result.error;
    }
  }
}

// Whichever comes first is rank 1. The other one gets an error, and the job goes on.
TEST(SocketRendezvous, SecondProcessOfARankIsRefused) {
  auto ranks = job_at(free_port(), 3);
  ranks.insert(ranks.begin() + 1, ranks[1]);
  for (std::size_t r : {1, 2}) ranks[r].timeout = milliseconds(3000);  // it may come when all have connected
  auto results = meet(ranks);
  const bool second_failed = !results[2].error.empty();
  EXPECT_NE(results[1].error.empty(), results[2].error.empty());
  results.erase(results.begin() + (second_failed ? 2 : 1));
  expect_connected(results);
}

// Each combination of a secret of rank 0 and of another rank, which may be none.
TEST(SocketSecret, RanksConnectIfItIsEqual) {
  for (const std::string first : {"", "a secret", "another"}) {
    for (const std::string second : {"", "a secret"}) {
      auto ranks = job_at(free_port(), 2);
      ranks[0].secret = first, ranks[1].secret = second;
      if (first == second) {
        expect_connected(meet(ranks));
        continue;
      }
      std::thread rank_0([&] { EXPECT_EQ(rendezvous(ranks[0]).size(), 2u); });
      const std::string error = meet({ranks[1]})[0].error;
      EXPECT_NE(error.find("DTENSOR_SECRET"), std::string::npos) << error;
      ranks[1].secret = first;  // rank 0 still waits for a rank with its secret
      EXPECT_EQ(rendezvous(ranks[1]).size(), 2u);
      rank_0.join();
    }
  }
}

// A server that answers zeros does not pass for rank 0.
TEST(SocketSecret, RankZeroProvesItToo) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Stream mine(ends[0]), server(ends[1]);
  RendezvousOptions options = job_at(1, 2)[1];
  options.secret = "a secret";
  Reply challenge, admitted;
  admitted.kind = Reply::admitted;
  ASSERT_TRUE(server.write_all(&challenge, sizeof challenge) && server.write_all(&admitted, sizeof admitted));
  const auto join = [&] {
    join_over(mine, 1, options, milliseconds(1000), milliseconds(1000), [](auto&) { return Member(); });
  };
  EXPECT_THROW(join(), CommError);
  Join sent;
  Answer answer;
  ASSERT_TRUE(server.read_all(&sent, sizeof sent) && server.read_all(&answer, sizeof answer));
  EXPECT_EQ(bytes_of(answer).find(options.secret), std::string_view::npos);
}

// Simulates a host behind a firewall: a full connection queue does not answer.
TEST(SocketRendezvous, UnresponsiveHostTimesOut) {
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
  EXPECT_THROW(rendezvous(job_at(port_of(silent), 2, 300)[1]), CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace dtensor::sockets
