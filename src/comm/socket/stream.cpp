// Opens, connects and names stream sockets; a listener uses one port on each address of this host.
#include "comm/socket/stream.h"

#include <arpa/inet.h>
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
#include <memory>

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

// The addresses of a host, or for an empty name those for all interfaces.
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  const char* name = host.empty() ? nullptr : host.c_str();
  if (getaddrinfo(name, std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

bool is_loopback(const addrinfo& a) {
  if (a.ai_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(a.ai_addr)->sin6_addr);
  return a.ai_family == AF_INET && ntohl(reinterpret_cast<sockaddr_in*>(a.ai_addr)->sin_addr.s_addr) >> 24 == 127;
}

bool is_number(const std::string& host) {
  in6_addr any;
  return inet_pton(AF_INET, host.c_str(), &any) == 1 || host.find(':') != std::string::npos;
}

std::uint16_t& port_in(sockaddr* address) {
  return address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(address)->sin_port;
}

// With `port`: followed by the port. Empty if the address is not of TCP.
std::string numeric_text(const sockaddr* address, socklen_t length, bool port) {
  char host[NI_MAXHOST] = "", number[NI_MAXSERV] = "";
  if (address->sa_family == AF_UNIX) return "";
  getnameinfo(address, length, host, sizeof host, number, sizeof number, NI_NUMERICHOST | NI_NUMERICSERV);
  return port ? std::string(host) + ":" + number : host;
}

// Not open on failure; errno says why. A port of connections that ended a moment ago is free.
Stream listen_on(const addrinfo& a, int port) {
  Stream listener(::socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.open()) return listener;
  set(listener.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (a.ai_family == AF_INET6) set(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  port_in(a.ai_addr) = htons(static_cast<std::uint16_t>(port));
  const bool bound = bind(listener.fd(), a.ai_addr, a.ai_addrlen) == 0;
  if (bound && listen(listener.fd(), kBacklog) == 0) return listener;
  const int why = errno;
  listener.reset();
  errno = why;
  return listener;
}

// Resolvers repeat addresses.
bool is_repeated(const addrinfo* first, const addrinfo* a) {
  const std::string text = numeric_text(a->ai_addr, a->ai_addrlen, false);
  while (first != a && numeric_text(first->ai_addr, first->ai_addrlen, false) != text) first = first->ai_next;
  return first != a;
}

// On each of the addresses that this host has; `in_use`: another program listens on the port of one of them.
std::vector<Stream> listen_on_all(const Addresses& addresses, int port, bool& in_use) {
  std::vector<Stream> listeners;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    if (is_repeated(addresses.get(), a)) continue;
    Stream listener = listen_on(*a, port);
    if (!listener.open() && errno == EADDRINUSE) return in_use = true, std::vector<Stream>();
    if (!listener.open()) continue;
    if (port == 0) port = port_of(listener);
    listeners.push_back(std::move(listener));
  }
  return listeners;
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

std::vector<Stream> listen_tcp(const std::string& host, int port) {
  const Addresses named = addresses_of(host, port);
  bool only_here = host != "localhost" && !is_number(host);
  for (const addrinfo* a = named.get(); a != nullptr && only_here; a = a->ai_next) only_here = is_loopback(*a);
  bool in_use = false;
  if (!only_here) {
    auto listeners = listen_on_all(named, port, in_use);
    if (!listeners.empty() || in_use) return listeners;
  }
  return listen_on_all(addresses_of("", port), port, in_use);
}

int port_of(const Stream& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(port_in(reinterpret_cast<sockaddr*>(&address)));
}

Stream listen_unix(const std::string& name) {
  Stream listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = 0;
  const sockaddr_un address = abstract(name, length);
  if (!listener.open()) return listener;
  const bool bound = bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (!bound || listen(listener.fd(), kBacklog) != 0) listener.reset();
  return listener;
}

Stream accept_next(const Stream& listener) {
  Stream peer(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (peer.open()) settle_tcp(peer.fd());
  return peer;
}

Stream connect_tcp(const std::string& host, int port, std::chrono::milliseconds time) {
  const Addresses found = addresses_of(host, port);
  Stream stream;
  for (const addrinfo* a = found.get(); a != nullptr && !stream.open(); a = a->ai_next) {
    stream = Stream(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (stream.open()) stream.set_timeout(time);
    if (stream.open() && connect(stream.fd(), a->ai_addr, a->ai_addrlen) != 0) stream.reset();
  }
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

bool readable_within(const Stream& stream, std::chrono::milliseconds time) {
  pollfd event{stream.fd(), POLLIN, 0};
  return poll(&event, 1, static_cast<int>(time.count())) > 0;
}

namespace {

std::string peer_text(const Stream& stream, bool port) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  const int status = getpeername(stream.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return status == 0 ? numeric_text(reinterpret_cast<sockaddr*>(&address), length, port) : "";
}

}  // namespace

std::string own_address(const Stream& stream) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  const int status = getsockname(stream.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return status == 0 ? numeric_text(reinterpret_cast<sockaddr*>(&address), length, false) : "";
}

std::string peer_address(const Stream& stream) { return peer_text(stream, false); }

std::string describe_peer(const Stream& stream) {
  const std::string address = peer_text(stream, true);
  if (!address.empty()) return address;
  ucred process{};
  socklen_t length = sizeof process;
  if (getsockopt(stream.fd(), SOL_SOCKET, SO_PEERCRED, &process, &length) != 0) return "a closed connection";
  return "process " + std::to_string(process.pid) + " of this host";
}

}  // namespace dtensor::sockets
