// The exchange of NCCL ids over TCP, which needs no GPU. Its source is built into the CUDA library, which tests do not
// link.
#include "comm/nccl/id_over_tcp.cpp"

#include <gtest/gtest.h>

namespace dtensor::nccl {
namespace {

using std::chrono::milliseconds;

int free_port() {
  const Socket probe(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  bind(probe.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  getsockname(probe.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin6_port);
}

// Every rank of a world shares two keys; returns what each got.
std::vector<std::pair<std::string, std::string>> share_all(int port, int size) {
  std::vector<std::pair<std::string, std::string>> got(size);
  std::vector<std::thread> ranks;
  for (int r = size - 1; r >= 0; --r) {
    ranks.emplace_back([&got, port, size, r] {
      const auto ids = exchange_over_tcp("127.0.0.1", port, r, size, milliseconds(20000));
      std::vector<std::int64_t> all(size);
      for (int i = 0; i < size; ++i) all[i] = i;
      std::string world = r == 0 ? "the world" : std::string(9, '?');
      ids->share(world.data(), world.size(), all, "world");
      std::string part = r == size - 1 ? "from last" : std::string(9, '?');
      ids->share(part.data(), part.size(), {all.rbegin(), all.rend()}, "part");
      got[r] = {world, part};
    });
  }
  for (auto& t : ranks) t.join();
  return got;
}

TEST(TcpExchange, EveryMemberGetsWhatTheFirstGave) {
  for (const auto& [world, part] : share_all(free_port(), 4)) {
    EXPECT_EQ(world, "the world");
    EXPECT_EQ(part, "from last");
  }
}

TEST(TcpExchange, PassesOverAnotherServiceOnThePort) {
  const Socket other(::socket(AF_INET6, SOCK_STREAM, 0));  // accepts, and never answers
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  bind(other.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  getsockname(other.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  listen(other.fd(), 16);
  for (const auto& [world, part] : share_all(ntohs(address.sin6_port), 2)) EXPECT_EQ(world, "the world");
}

TEST(TcpExchange, AnAbortIsHeardByEveryRank) {
  const int port = free_port();
  std::vector<std::shared_ptr<IdExchange>> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(exchange_over_tcp("127.0.0.1", port, r, 3, milliseconds(20000)));
  for (const auto& rank : ranks) EXPECT_EQ(rank->failure(), "");
  ranks[1]->abort("rank 1 aborted: the disk is full");
  for (const auto& rank : ranks) {
    for (int i = 0; i < 2000 && rank->failure().empty(); ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(rank->failure(), "rank 1 aborted: the disk is full");
  }
}

TEST(TcpExchange, SaysWhereItLooked) {
  const int port = free_port();
  const auto ids = exchange_over_tcp("127.0.0.1", port, 1, 2, milliseconds(300));
  char byte = 0;
  try {
    ids->share(&byte, 1, {0, 1}, "world");
    ADD_FAILURE();
  } catch (const CommError& e) {
    EXPECT_NE(std::string(e.what()).find("127.0.0.1:" + std::to_string(port)), std::string::npos);
  }
}

}  // namespace
}  // namespace dtensor::nccl
