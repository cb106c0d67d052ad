// This process's end of the stream to one peer: frames out, in order; frames in, with their bytes where they belong.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "comm/socket/frame.h"
#include "comm/socket/meet.h"

namespace dtensor::sockets {

// Where the bytes of a frame go, and what is done when they are all there.
struct Landing {
  char* data = nullptr;
  std::function<void()> done;
};

class Link {
 public:
  explicit Link(Met met) : met_(std::move(met)) {}

  int fd() const { return met_.stream.fd(); }
  pid_t readable() const { return met_.readable; }
  // Why nothing comes any more; empty: it may.
  const std::string& lost() const { return lost_; }
  void lose(const std::string& why);

  // Queues a frame. `owned` goes with it, or the `size` bytes at `data`, which stay until `sent` is called.
  void put(const Frame& frame, std::string owned = {});
  void put(const Frame& frame, const char* data, std::uint64_t size, std::function<void()> sent);
  void flush();
  bool waiting_to_write() const { return !out_.empty(); }

  // Reads what is there. `land` is asked once for each frame.
  void drain(const std::function<Landing(const Frame&)>& land);

 private:
  struct Piece {
    std::string owned;
    const char* data = nullptr;  // null: owned
    std::uint64_t size = 0, at = 0;
    std::function<void()> sent;
    const char* begin() const { return (data != nullptr ? data : owned.data()) + at; }
  };
  bool fill(char* to, std::uint64_t size, std::uint64_t& at);

  Met met_;
  std::string lost_;
  std::deque<Piece> out_;
  Frame frame_;
  std::uint64_t frame_at_ = 0, bytes_at_ = 0;
  bool landed_ = false;  // the frame is there, and its bytes are coming
  Landing landing_;
};

}  // namespace dtensor::sockets
