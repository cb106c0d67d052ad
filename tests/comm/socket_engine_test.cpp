// Messages over streams: each arrives once, complete and in order, with and without copies from the sender's memory.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <random>
#include <thread>

#include "comm/socket/transport.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using p2p::Batch;
using p2p::Channel;
using p2p::Transport;

// Transports of `size` ranks in this process.
std::vector<std::unique_ptr<Transport>> world(int size, bool copies) {
  std::vector<std::vector<Peer>> met(size);
  for (auto& m : met) m.resize(size);
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < i; ++j) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      met[i][j] = {Stream(ends[0]), true, copies ? getpid() : 0, "a thread"};
      met[j][i] = {Stream(ends[1]), true, copies ? getpid() : 0, "a thread"};
    }
  }
  std::vector<std::unique_ptr<Transport>> all;
  for (int i = 0; i < size; ++i) all.push_back(make_transport(i, std::move(met[i])));
  return all;
}

struct Sent {
  int from, to, tag;
  Channel channel;
  std::vector<char> bytes;
};

std::vector<Sent> draw_messages(int size) {
  std::mt19937 random(*rc::gen::arbitrary<unsigned>());
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  constexpr int kSizes[] = {1, 100, 16384, 16385, 300000, 2000000};
  std::vector<Sent> all;
  for (int i = below(30); i >= 0; --i) {
    const int bytes = 1 + below(kSizes[below(6)]);
    all.push_back({below(size), below(size), below(3), static_cast<Channel>(below(3)), {}});
    all.back().bytes.resize(static_cast<std::size_t>(bytes), static_cast<char>(i));
    for (auto& c : all.back().bytes) c = static_cast<char>(random());
  }
  return all;
}

void finish(Transport& transport, const std::vector<std::unique_ptr<Batch>>& batches) {
  for (const auto& batch : batches) {
    while (!batch->test()) transport.pause(std::chrono::nanoseconds(1), true);
  }
}

// Rank `me` sends and receives its messages. Receives are posted before or after the sends; messages of equal key
// arrive in order.
void play(int me, Transport& transport, const std::vector<Sent>& messages, bool late) {
  std::vector<std::unique_ptr<Batch>> sends, receives;
  std::vector<std::pair<const Sent*, std::vector<char>>> taken(messages.size());
  const auto post_receives = [&] {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].to != me) continue;
      taken[i] = {&messages[i], std::vector<char>(messages[i].bytes.size())};
      receives.push_back(transport.batch(messages[i].channel, messages[i].tag));
      receives.back()->recv(taken[i].second.data(), static_cast<std::int64_t>(taken[i].second.size()),
                            messages[i].from);
    }
  };
  if (!late) post_receives();
  for (const auto& m : messages) {
    if (m.from != me) continue;
    sends.push_back(transport.batch(m.channel, m.tag));
    sends.back()->send(m.bytes.data(), static_cast<std::int64_t>(m.bytes.size()), m.to);
  }
  for (int i = 0; i < 100 && late; ++i) transport.poll_control();
  if (late) post_receives();
  finish(transport, receives);
  finish(transport, sends);
  for (const auto& [sent, bytes] : taken) {
    if (sent != nullptr) {
      EXPECT_TRUE(bytes == sent->bytes) << bytes.size();
    }
  }
}

RC_GTEST_PROP(SocketEngine, EveryMessageArrivesOnceCompleteAndInOrder, ()) {
  const int size = *rc::gen::inRange(1, 5);
  const bool copies = *rc::gen::arbitrary<bool>();
  const auto all = world(size, copies);
  const auto messages = draw_messages(size);
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    const bool late = *rc::gen::arbitrary<bool>();
    ranks.emplace_back([&, r, late] { play(r, *all[r], messages, late); });
  }
  for (auto& t : ranks) t.join();
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(SocketEngine, MismatchedMessageSizeIsAnError) {
  for (const std::int64_t bytes : {100, 100000}) {
    const auto all = world(2, true);
    std::vector<char> sent(bytes), taken(bytes + 1);
    const auto from = all[0]->batch(Channel::messages, 1), to = all[1]->batch(Channel::messages, 1);
    from->send(sent.data(), bytes, 1);
    to->recv(taken.data(), bytes + 1, 0);
    try {
      for (int i = 0; i < 1000 && !to->test(); ++i) from->test();
      ADD_FAILURE() << bytes;
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("from rank 0 (a thread)"), std::string::npos) << e.what();
    }
  }
}

TEST(SocketEngine, ControlMessagesArriveBeforeTheDisconnect) {
  auto all = world(2, true);
  all[0]->send_control(1, 3, "the disk is full");
  all[0].reset();
  EXPECT_EQ(all[1]->disconnect_reason(0), "");
  const auto word = all[1]->poll_control();
  ASSERT_TRUE(word.has_value());
  EXPECT_EQ(word->text, "the disk is full");
  EXPECT_EQ(word->tag, 3);
  EXPECT_FALSE(all[1]->poll_control().has_value());
  EXPECT_EQ(all[1]->disconnect_reason(0), "has died: its connection closed");
}

}  // namespace
}  // namespace dtensor::sockets
