// Stream sockets: TCP between hosts, Unix sockets on one host.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

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

// Listens on this port of each address of `host` that this host has; 0: on a free port. Empty if the port is in use.
// Listens on all interfaces if this host has none of the addresses (a name for an address translation), or if a name
// other than localhost means the loopback interface here: other hosts resolve it to an interface of this host.
std::vector<Stream> listen_tcp(const std::string& host, int port);
int port_of(const Stream& listener);
// `name` is in the abstract namespace: it has no file, and is released with its listener.
Stream listen_unix(const std::string& name);
// The next connection, which does not block. Not open if there is none; errno is EMFILE or ENFILE without descriptors.
Stream accept_next(const Stream& listener);

// The timeout applies to each address of the host, since an unreachable one may not answer.
Stream connect_tcp(const std::string& host, int port, std::chrono::milliseconds time);
Stream connect_unix(const std::string& name);
// Whether the stream can be read, or has ended, within this time.
bool readable_within(const Stream& stream, std::chrono::milliseconds time);
// The address of this end of the connection, and of the other end.
std::string own_address(const Stream& stream);
std::string peer_address(const Stream& stream);
// The other end for messages: 10.0.0.1:4711, or process 123 of this host.
std::string describe_peer(const Stream& stream);

}  // namespace dtensor::sockets
