// What has been posted and what has come, matched by sender, channel and tag.
//
// Short messages go at once and wait in this process's memory until they are asked for. Long ones are offered, and
// moved when the receiver has said where to: by one copy out of the sender's memory where both are on one host and the
// kernel allows it, else over the stream. So the bytes that nobody has asked for yet are bounded, and no long message
// holds up what comes behind it.
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

// One message as the program posted it. Kept alive by the engine, too, while something may still happen to it.
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
  int poll_fd() const { return poll_; }  // ready where progress() has something to do

  // `now`: written at once, else with the next progress().
  void send(const MessagePtr& message, p2p::Channel channel, int tag, bool now);
  void recv(const MessagePtr& message, p2p::Channel channel, int tag);
  void send_control(int peer, const Frame& frame, const std::string& text);
  std::optional<p2p::ControlMessage> poll_control();
  // Why this peer can say nothing any more, once all that it said was heard; else empty.
  std::string disconnect_reason(int peer);

  void progress();  // moves what can be moved now
  void settle();    // what is queued goes out, as far as the peers take it

 private:
  using Channel = p2p::Channel;
  struct Key {
    int peer;
    Channel channel;
    int tag;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // A message that has come, or been offered, before it was asked for.
  struct UnexpectedMessage {
    Frame frame;
    std::shared_ptr<std::string> bytes;  // of a short one
  };

  // Whoever waits is woken when the peer has room again.
  void flush(int peer);
  bool has_pending_output();
  void send_to_self(const MessagePtr& message, const Frame& frame);
  static std::string size_mismatch(const Frame& frame, const Message& message);
  // A message that has arrived, or been offered, and the one that asked for it.
  void take(const UnexpectedMessage& arrived, const MessagePtr& message);
  void read_from_sender(const Frame& offer, const MessagePtr& message);
  static bool read_memory(pid_t process, const Frame& offer, const Message& message);
  ReceiveTarget receive_target(int peer, const Frame& frame);
  // Straight to where it was asked for, or into memory of its own.
  ReceiveTarget eager_target(int peer, const Frame& frame);
  MessagePtr take_by_id(std::map<std::uint64_t, MessagePtr>& map, std::uint64_t id);

  int rank_, poll_;
  std::mutex mutex_;
  std::deque<Connection> links_;
  std::vector<bool> writing_;  // of each link: it waits for room
  std::uint64_t ids_ = 0;
  std::map<Key, std::deque<MessagePtr>> posted_receives_;
  std::map<Key, std::deque<UnexpectedMessage>> unexpected_;
  std::map<std::uint64_t, MessagePtr> offered_, accepted_;
  std::deque<p2p::ControlMessage> control_messages_;
};

}  // namespace dtensor::sockets
