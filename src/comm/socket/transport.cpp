// Maps batches of messages to the progress engine of the process.
#include "comm/socket/transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <thread>

#include "comm/socket/progress_engine.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using p2p::Batch;
using p2p::Channel;
using p2p::ControlMessage;

constexpr int kSleepMilliseconds = 1;  // another thread of this process may read what this one waits for

class SocketBatch final : public Batch {
 public:
  SocketBatch(Engine& engine, Channel channel, int tag) : engine_(engine), channel_(channel), tag_(tag) {}

  void send(const void* data, std::int64_t bytes, int peer) override {
    if (bytes == 0) return;
    // Members of a collective poll at once, so its messages are written with the next progress(). Receivers of other
    // messages may compute first, so those are written now.
    engine_.send(next(const_cast<void*>(data), bytes, peer), channel_, tag_, channel_ != Channel::collectives);
  }
  void recv(void* data, std::int64_t bytes, int peer) override {
    if (bytes > 0) engine_.recv(next(data, bytes, peer), channel_, tag_);
  }

  bool test() override {
    engine_.progress();
    for (; first_open_ < messages_.size() && messages_[first_open_]->done; ++first_open_) {
      if (!messages_[first_open_]->error.empty()) throw CommError(messages_[first_open_]->error);
    }
    return first_open_ == messages_.size();
  }

  std::vector<std::int64_t> missing() const override {
    std::vector<std::int64_t> ranks;
    for (const auto& m : messages_) {
      if (!m->done) ranks.push_back(m->peer);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

 private:
  MessagePtr next(void* data, std::int64_t bytes, int peer) {
    messages_.push_back(std::make_shared<Message>());
    messages_.back()->peer = peer;
    messages_.back()->data = static_cast<char*>(data);
    messages_.back()->size = static_cast<std::uint64_t>(bytes);
    return messages_.back();
  }

  Engine& engine_;
  Channel channel_;
  int tag_;
  std::vector<MessagePtr> messages_;
  std::size_t first_open_ = 0;
};

class SocketTransport final : public p2p::Transport {
 public:
  SocketTransport(int rank, int here, std::vector<Peer> peers) : here_(here), engine_(rank, std::move(peers)) {}

  const char* name() const override { return "socket"; }
  int rank() const override { return engine_.rank(); }
  int size() const override { return engine_.size(); }
  int local_size() const override { return here_; }
  int cores() const override { return static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, here_); }
  int max_tag() const override { return std::numeric_limits<int>::max(); }
  std::unique_ptr<Batch> batch(Channel channel, int tag) override {
    return std::make_unique<SocketBatch>(engine_, channel, tag);
  }
  void send_control(int peer, int tag, const std::string& text) override {
    Frame frame;
    frame.kind = Frame::control;
    frame.tag = tag;
    frame.size = text.size();
    engine_.send_control(peer, frame, text);
  }
  std::optional<ControlMessage> poll_control() override { return engine_.poll_control(); }
  std::string disconnect_reason(int peer) override { return engine_.disconnect_reason(peer); }

  // Sleeps until data arrives, so that other processes can use the cores.
  void pause(std::chrono::nanoseconds waited, bool oversubscribed) override {
    if (!oversubscribed && waited.count() == 0) return;
    epoll_event event;
    epoll_wait(engine_.poll_fd(), &event, 1, kSleepMilliseconds);
  }

  void finish() override {
    engine_.settle();
    allow_memory_reads(false);
  }
  [[noreturn]] void abort() override {
    engine_.settle();
    std::_Exit(1);
  }
  bool abort_ends_all() const override { return false; }

 private:
  int here_;
  Engine engine_;
};

}  // namespace

std::unique_ptr<p2p::Transport> make_transport(int rank, std::vector<Peer> peers) {
  const auto here = 1 + std::count_if(peers.begin(), peers.end(), [](const Peer& m) { return m.same_host; });
  return std::make_unique<SocketTransport>(rank, static_cast<int>(here), std::move(peers));
}

}  // namespace dtensor::sockets
