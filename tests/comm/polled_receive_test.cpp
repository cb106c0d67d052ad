// A failed receive is done when polled, and wait() throws the cause: on threads, between processes, and for conjugate
// views.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "comm/fixture.h"
#include "comm/p2p/backend.h"
#include "comm/socket/transport.h"

namespace dtensor::test {
namespace {

void expect_done_and_throws(Work work) {
  EXPECT_NO_THROW(while (!work.done()) std::this_thread::yield());
  for (int i = 0; i < 2; ++i) EXPECT_THROW(work.wait(), CommError);
}

TEST(Polled, ReceiveFromAReturnedRank) {
  for (const bool conjugated : {false, true}) {
    const auto polls = [conjugated](Communicator world) {
      if (world.rank() == 1) return;
      const at::Tensor z = at::zeros({3}, at::kComplexFloat);
      expect_done_and_throws(world.recv(conjugated ? z.conj() : z, 1));
    };
    run_local(2, polls);
  }
}

TEST(Polled, MismatchedReceiveBetweenProcesses) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const auto rank = [&](int me, const std::function<void(const Communicator&)>& body) {
    std::vector<sockets::Peer> met(2);
    met[static_cast<std::size_t>(1 - me)] = {sockets::Stream(ends[me]), true, 0, "a thread"};
    p2p::Job job(sockets::make_transport(me, std::move(met)), {.timeout = std::chrono::seconds(20)});
    body(Communicator(p2p::make_world_backend(job)));
    job.close();
  };
  std::thread other([&] {
    rank(1, [](const Communicator& world) {
      EXPECT_THROW((world.send(at::ones({3}), 0).wait(), world.barrier()), CommError);
    });
  });
  rank(0, [](const Communicator& world) {
    const Work work = world.recv(at::zeros({4}), 1);
    expect_done_and_throws(work);
  });
  other.join();
}

}  // namespace
}  // namespace dtensor::test
