// Reads a fuzzer's bytes as numbers, and writes to one end of a socket pair without blocking.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "comm/socket/stream.h"

namespace dtensor::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  template <class T>
  T number() {  // zeros after the end
    T value{};
    const std::size_t n = std::min(left_, sizeof value);
    std::memcpy(&value, data_, n);
    data_ += n, left_ -= n;
    return value;
  }
  int below(int n) { return number<std::uint8_t>() % n; }
  bool flag() { return below(2) == 1; }
  std::string bytes(std::size_t most) {
    const std::size_t n = std::min(left_, most);
    std::string text(reinterpret_cast<const char*>(data_), n);
    data_ += n, left_ -= n;
    return text;
  }
  std::string rest() { return bytes(left_); }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", property);
  std::abort();
}

// A connection as its two ends: that of the tested rank, and the stranger's, which does not block.
inline std::pair<sockets::Stream, sockets::Stream> connection() {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair can be made");
  std::pair<sockets::Stream, sockets::Stream> both(ends[0], ends[1]);
  both.second.make_nonblocking();
  return both;
}

inline void write_some(const sockets::Stream& stream, std::string_view bytes) {
  if (stream.open()) (void)!::send(stream.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// What has arrived, up to 256 KiB.
inline std::string read_some(const sockets::Stream& stream) {
  std::string bytes(1 << 18, '\0');
  const ssize_t n = stream.open() ? ::recv(stream.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT) : 0;
  return bytes.substr(0, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
}

}  // namespace dtensor::fuzz
