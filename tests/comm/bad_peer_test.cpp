// A peer whose frames break the protocol: no memory is touched, and every rank gets one error with the peer's address.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "comm/p2p/backend.h"
#include "comm/p2p/call_header.h"
#include "comm/socket/frame.h"
#include "comm/socket/transport.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using p2p::Channel;

constexpr std::uint64_t kLong = 70000;

std::pair<Stream, Stream> connection() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  return {Stream(ends[0]), Stream(ends[1])};
}

void write_frame(const Stream& stream, const Frame& frame) { ASSERT_TRUE(stream.write_all(&frame, sizeof frame)); }

Frame frame_of(int kind, std::uint64_t size, std::uint64_t id = 0, int channel = 0) {
  Frame frame;
  frame.kind = static_cast<Frame::Kind>(kind);
  frame.channel = static_cast<std::uint8_t>(channel);
  frame.tag = 1;
  frame.size = size;
  frame.id = id;
  return frame;
}

// Rank 0 of three, the others are strangers. It receives a short and a long message from rank 1, and sends a long one
// to each. Ids: 1 and 2 are those it sends; 3 is that which it accepted.
class BusyRank {
 public:
  BusyRank() : buffers_(6, std::string(kLong, 'z')) {
    std::vector<Peer> peers(3);
    for (int r : {1, 2}) {
      auto [mine, theirs] = connection();
      mine.make_nonblocking();
      peers[r] = {std::move(mine), true, 0, "10.0.0." + std::to_string(r) + ":4711"};
      strangers_[r - 1] = std::move(theirs);
    }
    transport_ = make_transport(0, std::move(peers));
    for (int r : {1, 2}) batch(2)->send(buffers_[r].data(), kLong, r);
    batch(1)->recv(buffers_[3].data(), 100, 1);
    batch(3)->recv(buffers_[4].data(), kLong, 1);
    Frame offer = frame_of(Frame::request_to_send, kLong, 9);
    offer.tag = 3;
    write_frame(strangers_[0], offer);
    transport_->poll_control();
  }
  const Stream& stranger(int rank) const { return strangers_[rank - 1]; }
  std::string reason_now(int rank) {
    transport_->poll_control();
    return transport_->disconnect_reason(rank);
  }
  // The reason after the stranger has sent as much as fits.
  std::string reason(int rank) {
    const std::string bytes(1 << 20, 'A');
    for (ssize_t n = 1; n > 0 && transport_->disconnect_reason(rank).empty();) {
      n = ::send(stranger(rank).fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      transport_->poll_control();
    }
    return reason_now(rank);
  }
  // Whether no byte of a stranger was written behind or into a buffer.
  bool untouched() const {
    return std::all_of(buffers_.begin(), buffers_.end(),
                       [](const std::string& b) { return b.find('A') == std::string::npos; });
  }

 private:
  p2p::Batch* batch(int tag) { return batches_.emplace_back(transport_->batch(Channel::collectives, tag)).get(); }
  std::vector<std::string> buffers_;
  Stream strangers_[2];
  std::unique_ptr<p2p::Transport> transport_;
  std::vector<std::unique_ptr<p2p::Batch>> batches_;
};

TEST(BadPeer, FramesThatWereNotAgreedEndItsConnection) {
  const std::uint64_t huge = std::uint64_t{1} << 61;
  const Frame frames[] = {frame_of(77, 5),
                          frame_of(Frame::eager, 5, 0, 9),
                          frame_of(Frame::eager, 0),
                          frame_of(Frame::eager, kShort + 1),
                          frame_of(Frame::eager, huge),
                          frame_of(Frame::control, p2p::kLongestControl + 1),
                          frame_of(Frame::control, huge),
                          frame_of(Frame::request_to_send, kShort),
                          frame_of(Frame::request_to_send, ~std::uint64_t{0}),
                          frame_of(Frame::clear_to_send, 0, 99),
                          frame_of(Frame::clear_to_send, 0, 2),
                          frame_of(Frame::clear_to_send, 1, 1),
                          frame_of(Frame::acknowledge, 0, 99),
                          frame_of(Frame::acknowledge, 0, 2),
                          frame_of(Frame::data, kLong, 99),
                          frame_of(Frame::data, kLong + 1, 3),
                          frame_of(Frame::data, 50000000, 3),
                          frame_of(Frame::data, 1, 3),
                          frame_of(Frame::data, huge, 3)};
  for (const Frame& frame : frames) {
    BusyRank rank;
    write_frame(rank.stranger(1), frame);
    const std::string where = "kind " + std::to_string(frame.kind) + " size " + std::to_string(frame.size);
    EXPECT_NE(rank.reason(1).find("10.0.0.1:4711"), std::string::npos) << where << ": " << rank.reason(1);
    EXPECT_TRUE(rank.untouched()) << where;
  }
}

// The message that rank 1 offered is not filled by rank 2.
TEST(BadPeer, MessagesOfAnotherPeerAreNotAnswered) {
  for (const Frame& frame :
       {frame_of(Frame::data, kLong, 3), frame_of(Frame::clear_to_send, 0, 1), frame_of(Frame::acknowledge, 0, 1)}) {
    BusyRank rank;
    write_frame(rank.stranger(2), frame);
    EXPECT_NE(rank.reason(2).find("10.0.0.2:4711"), std::string::npos) << rank.reason(2);
    EXPECT_TRUE(rank.untouched());
  }
}

TEST(BadPeer, ValidFramesAreAccepted) {
  for (const Frame& frame :
       {frame_of(Frame::data, kLong, 3), frame_of(Frame::clear_to_send, 0, 1), frame_of(Frame::acknowledge, 0, 1),
        frame_of(Frame::eager, 100), frame_of(Frame::eager, 7)}) {
    BusyRank rank;
    write_frame(rank.stranger(1), frame);
    const std::string bytes(frame.has_bytes() ? frame.size : 0, 'b');
    ASSERT_TRUE(rank.stranger(1).write_all(bytes.data(), bytes.size()));
    EXPECT_EQ(rank.reason_now(1), "");
  }
}

// Ranks 0 and 1 are in a barrier with a stranger as rank 2, which sends `bytes` to rank 0.
std::vector<std::string> errors_after(const std::string& bytes) {
  std::vector<std::vector<Peer>> peers(2);
  std::vector<Stream> strangers;
  for (auto& p : peers) p.resize(3);
  auto [first, second] = connection();
  peers[0][1] = {std::move(first), true, 0, "10.0.0.1:1"};
  peers[1][0] = {std::move(second), true, 0, "10.0.0.0:1"};
  for (auto& p : peers) {
    auto [mine, theirs] = connection();
    p[2] = {std::move(mine), true, 0, "10.0.0.2:4711"};
    strangers.push_back(std::move(theirs));
  }
  EXPECT_TRUE(strangers[0].write_all(bytes.data(), bytes.size()));
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      p2p::Job job(make_transport(r, std::move(peers[r])), {.timeout = std::chrono::seconds(20)});
      try {
        Communicator(p2p::make_world_backend(job)).barrier();
      } catch (const CommError& e) {
        errors[r] = e.what();
      }
      strangers[r].reset();
      job.close();
    });
  }
  for (auto& t : ranks) t.join();
  return errors;
}

TEST(BadPeer, OneErrorWithItsAddressOnEveryRank) {
  const Frame unknown = frame_of(77, 5);
  for (const auto& error : errors_after({reinterpret_cast<const char*>(&unknown), sizeof unknown})) {
    EXPECT_NE(error.find("rank 2 sent a frame of unknown kind 77; it is at 10.0.0.2:4711"), std::string::npos) << error;
  }
}

// A report of a wait (tag 4) for a rank that does not exist.
TEST(BadPeer, ReportsNameRanksOfTheJob) {
  for (const char* rank : {"3", "-1", "1000000000000"}) {
    const std::string text = std::string("1 0 -1 1 ") + rank + " 0 a call";
    Frame frame = frame_of(Frame::control, text.size());
    frame.tag = 4;
    for (const auto& error : errors_after(std::string(reinterpret_cast<const char*>(&frame), sizeof frame) + text)) {
      EXPECT_NE(error.find("rank 2 sent a report that it waits for rank " + std::string(rank)), std::string::npos)
          << error;
    }
  }
}

// Any bytes can be shown as the header of a call, whose texts may lack their end.
TEST(BadPeer, HeadersOfAnyBytesHaveATextOfBoundedLength) {
  for (const int byte : {0, 1, 0x7f, 0x80, 0xff}) {
    p2p::CallHeader header;
    std::memset(static_cast<void*>(&header), byte, sizeof header);
    EXPECT_LE(header.str().size(), 1000u);
    EXPECT_EQ(header.str().find("unknown kind") != std::string::npos, byte != 0) << byte;
    EXPECT_LE(header.error_text().size(), sizeof header.error);
    header.kind = 2, header.op = 0;
    EXPECT_LE(header.str().size(), 1000u);
  }
}

}  // namespace
}  // namespace dtensor::sockets
