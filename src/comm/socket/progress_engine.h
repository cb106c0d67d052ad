// Matches posted and arrived messages by sender, channel and tag.
//
// Short messages are sent eagerly and stay in the receiver's memory until a receive is posted. Long messages use a
// rendezvous: the receiver copies them from the sender's memory if both are on one host and the kernel allows it, else
// they go over the stream. So the memory of unexpected messages is bounded, and a long message does not block those
// behind it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/p2p/transport.h"
#include "comm/socket/peer_link.h"

namespace dtensor::sockets {

// One posted message. The engine keeps it alive while it is in use.
struct Message {
  int peer;
  char* data;
  std::uint64_t size;
  std::atomic<bool> done{false};
  std::string error;  // set before done
  void finish(std::string why = {}) {
    error = std::move(why);
    done = true;
  }
};
using MessagePtr = std::shared_ptr<Message>;

class Engine {
 public:
  Engine(int rank, std::vector<Peer> peers);
  ~Engine();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  int poll_fd() const { return poll_; }  // readable if progress() has work

  // `now`: written at once, else at the next progress().
  void send(const MessagePtr& message, p2p::Channel channel, int tag, bool now);
  void recv(const MessagePtr& message, p2p::Channel channel, int tag);
  void send_control(int peer, const Frame& frame, const std::string& text);
  std::optional<p2p::ControlMessage> poll_control();
  // The reason why this peer cannot send any more, after all its messages were handled; else empty.
  std::string disconnect_reason(int peer);

  void progress();  // makes all progress that is possible now
  void settle();    // flushes queued output, as far as the peers receive it

 private:
  using Channel = p2p::Channel;
  struct Key {
    int peer;
    Channel channel;
    int tag;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // A message that arrived, or was offered, before its receive was posted.
  struct UnexpectedMessage {
    Frame frame;
    std::shared_ptr<std::string> bytes;  // of a short message
  };

  // Also sets what the waiting thread wakes for: input unless the peer was rejected, and space for output that remains.
  void flush(int peer);
  bool has_pending_output();
  void send_to_self(const MessagePtr& message, const Frame& frame);
  std::string size_mismatch(const Frame& frame, const Message& message) const;
  // Completes a receive with a message that has arrived or was offered.
  void take(const UnexpectedMessage& arrived, const MessagePtr& message);
  void read_from_sender(const Frame& offer, const MessagePtr& message);
  static bool read_memory(pid_t process, const Frame& offer, const Message& message);
  ReceiveTarget receive_target(int peer, const Frame& frame);
  // Receives directly into the buffer of a posted receive, or into a new one.
  ReceiveTarget eager_target(int peer, const Frame& frame);
  ReceiveTarget data_target(int peer, const Frame& frame);
  // The message of this peer; rejects the peer and returns null if there is none.
  MessagePtr take_by_id(std::map<std::uint64_t, MessagePtr>& map, int peer, std::uint64_t id);

  int rank_, poll_;
  std::mutex mutex_;
  std::deque<Connection> links_;
  std::vector<std::uint32_t> awaited_;  // for each link: the events of epoll that it waits for
  std::uint64_t ids_ = 0;
  std::map<Key, std::deque<MessagePtr>> posted_receives_;
  std::map<Key, std::deque<UnexpectedMessage>> unexpected_;
  std::map<std::uint64_t, MessagePtr> offered_, accepted_;
  std::deque<p2p::ControlMessage> control_messages_;
};

}  // namespace dtensor::sockets
