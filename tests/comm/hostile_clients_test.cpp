// Strangers at the port of a job while its ranks connect and communicate: the results are those without strangers, and
// the log has some lines.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "comm/fixture.h"
#include "comm/p2p/backend.h"
#include "comm/socket/rendezvous/rendezvous.h"
#include "comm/socket/transport.h"

namespace dtensor::sockets {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kJob = 7;

// Connections that strangers keep open.
std::vector<Stream>& held() {
  static auto& streams = *new std::vector<Stream>;
  return streams;
}

Join join_as(std::uint32_t rank, std::uint32_t size) {
  Join join;
  join.job = kJob, join.size = size, join.rank = rank;
  return join;
}

std::string random_bytes(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

void send(const Stream& stream, std::string_view bytes) {
  (void)!::send(stream.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string answer_with(std::uint32_t port) {
  Answer answer;
  answer.member.port = port;
  return std::string(bytes_of(answer));
}

// What each stranger does with its connection.
std::vector<std::function<void(Stream)>> hostile_clients() {
  const auto says = [](std::string bytes) { return [bytes](const Stream& s) { send(s, bytes); }; };
  const auto stays = [](std::string bytes) {
    return [bytes](Stream s) {
      send(s, bytes);
      held().push_back(std::move(s));
    };
  };
  const auto text = [](const auto& message) { return std::string(bytes_of(message)); };
  Join other_magic = join_as(1, 3), with_secret = join_as(1, 3);
  other_magic.magic ^= 1, with_secret.has_secret = 1;
  Hello hello, huge_hello;
  hello.from = 1, huge_hello.from = 0xffffffff;
  hello.pid = huge_hello.pid = 1;
  return {says(""),
          stays(""),
          stays("x"),
          says("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
          says(random_bytes(64, 1)),
          says(random_bytes(100000, 2)),
          stays(random_bytes(63, 3)),
          says(text(other_magic)),
          says(text(with_secret)),
          says(text(join_as(1, 3))),
          stays(text(join_as(2, 3))),
          says(text(join_as(0, 3)) + answer_with(80)),
          says(text(join_as(3, 3)) + answer_with(80)),
          says(text(join_as(0xffffffff, 3)) + answer_with(80)),
          says(text(join_as(1, 3)) + answer_with(0)),
          says(text(join_as(2, 3)) + answer_with(0xffffffff)),
          says(text(join_as(1, 3)).substr(0, 40)),
          says(text(hello)),
          stays(text(huge_hello)),
          says(std::string(1 << 20, 'A')),
          [](Stream s) {  // reset
            const linger now{1, 0};
            setsockopt(s.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
          }};
}

void attack(int port) {
  for (const auto& client : hostile_clients()) {
    if (Stream stream = connect_tcp("127.0.0.1", port, milliseconds(1000)); stream.open()) client(std::move(stream));
  }
}

// A rank of three: connects and sums.
float run_rank(int port, int rank) try {
  auto peers = rendezvous({"127.0.0.1", port, rank, 3, kJob, milliseconds(20000), ""});
  p2p::Job job(make_transport(rank, std::move(peers)), {.timeout = std::chrono::seconds(20)});
  const at::Tensor sum = at::full({100000}, static_cast<float>(rank + 1));
  const Communicator world(p2p::make_world_backend(job));
  for (int i = 0; i < 20; ++i) world.all_reduce(sum, ReduceOp::avg).wait();
  job.leave();
  job.close();
  return sum[99999].item<float>();
} catch (const CommError& e) {
  ADD_FAILURE() << e.what();
  return 0;
}

int lines_with(const std::string& text, const std::string& word) {
  int count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(HostileClients, ChangeNothingButSomeLinesOfTheLog) {
  ASSERT_GE(hostile_clients().size(), 20u);
  const int port = port_of(listen_tcp("127.0.0.1", 0).front());
  testing::internal::CaptureStderr();
  std::vector<float> sums(3);
  std::vector<std::thread> ranks;
  ranks.emplace_back([&] { sums[0] = run_rank(port, 0); });
  while (!connect_tcp("127.0.0.1", port, milliseconds(1000)).open()) std::this_thread::yield();
  attack(port);
  ranks.emplace_back([&] { sums[1] = run_rank(port, 1); });
  attack(port);
  ranks.emplace_back([&] { sums[2] = run_rank(port, 2); });
  for (int i = 0; i < 10; ++i) attack(port);
  for (auto& t : ranks) t.join();
  held().clear();
  const int logged = lines_with(testing::internal::GetCapturedStderr(), "closed a connection from 127.0.0.1");
  EXPECT_EQ(sums, std::vector<float>(3, 2));
  EXPECT_GE(logged, 1);
  EXPECT_LE(logged, 10);
}

// A child process that opens connections and keeps 1000 of them. Returns when it has 300.
pid_t start_flood(int port) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child != 0) {
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]), close(ends[1]);
    return child;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::deque<Stream> held;
  for (int i = 0;; ++i) {
    if (Stream stream = connect_tcp("127.0.0.1", port, milliseconds(1000)); stream.open())
      held.push_back(std::move(stream));
    if (held.size() > 1000) held.pop_front();
    if (i == 300 && write(ends[1], "", 1) != 1) std::_Exit(1);
  }
}

// A limit of the descriptors of this process for a scope.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{most, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Silent connections, more than this process may have descriptors, are opened until all ranks have connected.
TEST(HostileClients, SilentConnectionsExhaustNothing) {
  const int port = port_of(listen_tcp("127.0.0.1", 0).front());
  testing::internal::CaptureStderr();
  std::vector<float> sums(3);
  std::vector<std::thread> ranks;
  {
    const DescriptorLimit limit(500);
    ranks.emplace_back([&] { sums[0] = run_rank(port, 0); });
    while (!connect_tcp("127.0.0.1", port, milliseconds(1000)).open()) std::this_thread::yield();
    const pid_t flood = start_flood(port);
    for (int r : {1, 2}) ranks.emplace_back([&, r] { sums[r] = run_rank(port, r); });
    for (auto& t : ranks) t.join();
    kill(flood, SIGKILL);
    waitpid(flood, nullptr, 0);
  }
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(sums, std::vector<float>(3, 2));
}

}  // namespace
}  // namespace dtensor::sockets
