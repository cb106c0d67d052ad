// This process's end of the stream to one peer. Sends frames in order, and receives frames with their bytes at their
// target.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "comm/socket/frame.h"
#include "comm/socket/rendezvous/rendezvous.h"

namespace dtensor::sockets {

// The target of a frame's bytes, and a callback for when they have all arrived.
struct ReceiveTarget {
  char* data = nullptr;
  std::function<void()> done;
};

class Connection {
 public:
  explicit Connection(Peer peers) : peer_(std::move(peers)) {}

  int fd() const { return peer_.stream.fd(); }
  pid_t readable() const { return peer_.readable; }
  const std::string& address() const { return peer_.address; }  // empty for this rank itself
  // The reason why nothing can arrive any more; empty while it can.
  const std::string& disconnect_reason() const { return disconnect_reason_; }
  void disconnect(const std::string& why);
  // The peer does not follow the protocol: nothing more is read from it, but it can still receive the reason.
  void reject(const std::string& what);

  // Queues a frame, followed by `owned` or by the `size` bytes at `data`, which must live until `sent` is called.
  void put(const Frame& frame, std::string owned = {});
  void put(const Frame& frame, const char* data, std::uint64_t size, std::function<void()> sent);
  void flush();
  bool has_pending_output() const { return !out_.empty(); }

  // Reads all available data. Calls `receive_target` once for each valid frame; it may disconnect or reject().
  void drain(const std::function<ReceiveTarget(const Frame&)>& receive_target);

 private:
  struct Piece {
    std::string owned;
    const char* data = nullptr;  // null: use `owned`
    std::uint64_t size = 0, at = 0;
    std::function<void()> sent;
    const char* begin() const { return (data != nullptr ? data : owned.data()) + at; }
  };
  bool fill(char* to, std::uint64_t size, std::uint64_t& at);

  Peer peer_;
  std::string disconnect_reason_;
  std::deque<Piece> out_;
  Frame frame_;
  std::uint64_t frame_at_ = 0, bytes_at_ = 0;
  bool frame_complete_ = false;  // the frame is complete, and its bytes are arriving
  ReceiveTarget target_;
};

}  // namespace dtensor::sockets
