#include "comm/socket/stream.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dtensor::sockets {
namespace {

constexpr int kBacklog = 4096;

void set(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

// Sends small messages without delay, and detects a dead host within seconds.
void settle_tcp(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Stream listen_on(int family, int port) {
  Stream listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.open()) return listener;
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_in);
  if (family == AF_INET6) {
    set(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    auto& to = reinterpret_cast<sockaddr_in6&>(address);
    to.sin6_addr = in6addr_any;
    to.sin6_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof to;
  } else {
    auto& to = reinterpret_cast<sockaddr_in&>(address);
    to.sin_addr.s_addr = htonl(INADDR_ANY);
    to.sin_port = htons(static_cast<std::uint16_t>(port));
  }
  address.ss_family = static_cast<sa_family_t>(family);
  const bool bound = bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  if (!bound || listen(listener.fd(), kBacklog) != 0) listener.reset();
  return listener;
}

sockaddr_un abstract(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

// Repeats `move` for what is left until all bytes have moved; false if it fails.
template <class Byte, class Move>
bool repeat(Byte* at, std::size_t bytes, Move move) {
  while (bytes > 0) {
    const ssize_t n = move(at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n, bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

void Stream::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void Stream::set_timeout(std::chrono::milliseconds time) const {
  const timeval tv{time.count() / 1000, time.count() % 1000 * 1000};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}

bool Stream::write_all(const void* data, std::size_t bytes) const {
  return repeat(static_cast<const char*>(data), bytes,
                [&](const char* at, std::size_t left) { return ::send(fd_, at, left, MSG_NOSIGNAL); });
}

bool Stream::read_all(void* data, std::size_t bytes) const {
  return repeat(static_cast<char*>(data), bytes, [&](char* at, std::size_t left) { return ::recv(fd_, at, left, 0); });
}

void Stream::make_nonblocking() const { fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK); }

Stream listen_tcp(int port) {
  Stream listener = listen_on(AF_INET6, port);
  return listener.open() ? std::move(listener) : listen_on(AF_INET, port);
}

int port_of(const Stream& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Stream listen_unix(const std::string& name) {
  Stream listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = abstract(name, length);
  if (!listener.open()) return listener;
  const bool bound = bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (!bound || listen(listener.fd(), kBacklog) != 0) listener.reset();
  return listener;
}

Stream accept_within(const Stream& listener, std::chrono::milliseconds time) {
  pollfd ready{listener.fd(), POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(time.count())) <= 0) return Stream();
  Stream peer(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (peer.open()) settle_tcp(peer.fd());
  return peer;
}

Stream connect_tcp(const std::string& host, int port, std::chrono::milliseconds time) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return Stream();
  Stream stream;
  for (addrinfo* a = found; a != nullptr && !stream.open(); a = a->ai_next) {
    stream = Stream(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (stream.open()) stream.set_timeout(time);
    if (stream.open() && connect(stream.fd(), a->ai_addr, a->ai_addrlen) != 0) stream.reset();
  }
  freeaddrinfo(found);
  if (stream.open()) settle_tcp(stream.fd());
  return stream;
}

Stream connect_unix(const std::string& name) {
  Stream stream(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = abstract(name, length);
  if (stream.open() && connect(stream.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) stream.reset();
  return stream;
}

std::string own_address(const Stream& stream) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXHOST] = "";
  if (getsockname(stream.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace dtensor::sockets
