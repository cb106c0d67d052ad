// A system short of memory refuses a send for a moment; no message is lost. This program's sendmsg replaces the C
// library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>

#include "comm/socket/transport.h"

namespace {
thread_local int refused = 0, refusal = 0;  // number of calls of this thread to refuse, and their errno
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static const auto next = reinterpret_cast<ssize_t (*)(int, const msghdr*, int)>(dlsym(RTLD_NEXT, "sendmsg"));
  if (refused == 0) return next(socket, message, flags);
  --refused;
  errno = refusal;
  return -1;
}

namespace dtensor::sockets {
namespace {

TEST(ShortMemory, LosesNoMessage) {
  for (const int error : {ENOBUFS, ENOMEM}) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    std::vector<Peer> mine(2), theirs(2);
    mine[1] = {Stream(ends[0]), true, 0};
    theirs[0] = {Stream(ends[1]), true, 0};
    const auto from = make_transport(0, std::move(mine)), to = make_transport(1, std::move(theirs));
    refused = 2, refusal = error;
    from->send_control(1, 3, "the disk is full");
    std::optional<p2p::ControlMessage> word;
    for (int i = 0; i < 10 && !word; ++i) from->poll_control(), word = to->poll_control();
    ASSERT_TRUE(word.has_value()) << error;
    EXPECT_EQ(word->text, "the disk is full");
    EXPECT_EQ(refused, 0);
  }
}

}  // namespace
}  // namespace dtensor::sockets
