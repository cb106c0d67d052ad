// Queues frames for one peer and writes as many as the stream takes; a failed read or a closed stream ends the link.
#include "comm/socket/peer_link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dtensor::sockets {
namespace {

constexpr std::size_t kPieces = 16;  // written by one call

// Also true if the system is temporarily out of memory, which does not end the stream.
bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM; }

}  // namespace

void Connection::disconnect(const std::string& why) {
  if (!disconnect_reason_.empty()) return;
  disconnect_reason_ = why;
  out_.clear();
  peer_.stream.reset();
}

void Connection::reject(const std::string& what) {
  if (disconnect_reason_.empty()) disconnect_reason_ = "sent " + what + "; it is at " + peer_.address;
}

void Connection::put(const Frame& frame, std::string owned) {
  if (!peer_.stream.open()) return;
  Piece piece;
  piece.owned.reserve(sizeof frame + owned.size());
  piece.owned.assign(reinterpret_cast<const char*>(&frame), sizeof frame).append(owned);
  piece.size = piece.owned.size();
  out_.push_back(std::move(piece));
}

void Connection::put(const Frame& frame, const char* data, std::uint64_t size, std::function<void()> sent) {
  put(frame);
  if (!peer_.stream.open()) return;
  Piece piece;
  piece.data = data;
  piece.size = size;
  piece.sent = std::move(sent);
  out_.push_back(std::move(piece));
}

void Connection::flush() {
  while (!out_.empty() && peer_.stream.open()) {
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
    // Data that the peer sent before it closed is still to be read; drain() finds the end.
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

// Returns whether `at` has reached `size`.
bool Connection::fill(char* to, std::uint64_t size, std::uint64_t& at) {
  while (at < size) {
    const ssize_t n = ::recv(fd(), to + at, size - at, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block()) return false;
    if (n == 0) return disconnect("has died: its connection closed"), false;
    if (n < 0) return disconnect(std::string("has died: its connection failed: ") + std::strerror(errno)), false;
    at += static_cast<std::uint64_t>(n);
  }
  return true;
}

void Connection::drain(const std::function<ReceiveTarget(const Frame&)>& receive_target) {
  while (disconnect_reason_.empty()) {
    if (!frame_complete_) {
      if (!fill(reinterpret_cast<char*>(&frame_), sizeof frame_, frame_at_)) return;
      const std::string error = frame_error(frame_);
      if (!error.empty()) return reject(error);
      target_ = receive_target(frame_);
      if (!disconnect_reason_.empty()) return;
      frame_complete_ = true;
      bytes_at_ = 0;
    }
    if (frame_.has_bytes() && !fill(target_.data, frame_.size, bytes_at_)) return;
    frame_complete_ = false;
    frame_at_ = 0;
    if (target_.done) std::exchange(target_.done, nullptr)();
  }
}

}  // namespace dtensor::sockets
