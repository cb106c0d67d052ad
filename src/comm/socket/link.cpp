#include "comm/socket/link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dtensor::sockets {
namespace {

constexpr std::size_t kPieces = 16;  // written by one call

// The system's memory may be short for a moment, which is no end of the stream.
bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM; }

}  // namespace

void Link::lose(const std::string& why) {
  if (!lost_.empty()) return;
  lost_ = why;
  out_.clear();
  met_.stream.reset();
}

void Link::put(const Frame& frame, std::string owned) {
  if (!lost_.empty()) return;
  Piece piece;
  piece.owned.reserve(sizeof frame + owned.size());
  piece.owned.assign(reinterpret_cast<const char*>(&frame), sizeof frame).append(owned);
  piece.size = piece.owned.size();
  out_.push_back(std::move(piece));
}

void Link::put(const Frame& frame, const char* data, std::uint64_t size, std::function<void()> sent) {
  put(frame);
  if (!lost_.empty()) return;
  Piece piece;
  piece.data = data;
  piece.size = size;
  piece.sent = std::move(sent);
  out_.push_back(std::move(piece));
}

void Link::flush() {
  while (!out_.empty() && lost_.empty()) {
    iovec parts[kPieces];
    msghdr message{};
    message.msg_iov = parts;
    for (const Piece& piece : out_) {
      if (message.msg_iovlen == kPieces) break;
      parts[message.msg_iovlen++] = {const_cast<char*>(piece.begin()), piece.size - piece.at};
    }
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block()) return;
    // What it said before it went is still to be read: drain() finds the end.
    if (n < 0) return out_.clear();
    for (auto left = static_cast<std::uint64_t>(n); left > 0;) {
      Piece& piece = out_.front();
      const std::uint64_t part = std::min(left, piece.size - piece.at);
      piece.at += part, left -= part;
      if (piece.at < piece.size) break;
      if (piece.sent) piece.sent();
      out_.pop_front();
    }
  }
}

// Whether `at` has reached `size`.
bool Link::fill(char* to, std::uint64_t size, std::uint64_t& at) {
  while (at < size) {
    const ssize_t n = ::recv(fd(), to + at, size - at, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block()) return false;
    if (n == 0) return lose("its connection closed"), false;
    if (n < 0) return lose(std::string("its connection failed: ") + std::strerror(errno)), false;
    at += static_cast<std::uint64_t>(n);
  }
  return true;
}

void Link::drain(const std::function<Landing(const Frame&)>& land) {
  while (lost_.empty()) {
    if (!landed_) {
      if (!fill(reinterpret_cast<char*>(&frame_), sizeof frame_, frame_at_)) return;
      landing_ = land(frame_);
      landed_ = true;
      bytes_at_ = 0;
    }
    if (frame_.has_bytes() && !fill(landing_.data, frame_.size, bytes_at_)) return;
    landed_ = false;
    frame_at_ = 0;
    if (landing_.done) std::exchange(landing_.done, nullptr)();
  }
}

}  // namespace dtensor::sockets
