// Stream sockets: TCP between hosts, Unix sockets on one host.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace dtensor::sockets {

class Stream {
 public:
  Stream() = default;
  explicit Stream(int fd) : fd_(fd) {}
  ~Stream() { reset(); }
  Stream(Stream&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void reset();

  // Timeout of each read and write below; 0: none.
  void set_timeout(std::chrono::milliseconds time) const;
  bool write_all(const void* data, std::size_t bytes) const;
  bool read_all(void* data, std::size_t bytes) const;
  void make_nonblocking() const;

 private:
  int fd_ = -1;
};

// Listens on this port of every interface; 0: on a free port. The result is not open on failure.
Stream listen_tcp(int port);
int port_of(const Stream& listener);
// `name` is in the abstract namespace: it has no file, and is released with its listener.
Stream listen_unix(const std::string& name);
// Accepts the next connection, if one arrives within `time`.
Stream accept_within(const Stream& listener, std::chrono::milliseconds time);

// The timeout applies to each address of the host, since an unreachable one may not answer.
Stream connect_tcp(const std::string& host, int port, std::chrono::milliseconds time);
Stream connect_unix(const std::string& name);
// The address of this end of the connection.
std::string own_address(const Stream& stream);

}  // namespace dtensor::sockets
