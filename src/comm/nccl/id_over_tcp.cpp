// A small table of ids on rank 0, asked over TCP: `put` and a `get` that waits until the key is there. Each request is
// a connection of its own. Requests begin with a magic number and the size of the world, so that another service on the
// port (torchrun's own store) is recognised and passed over.
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "comm/nccl/id_exchange.h"

namespace dtensor::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMagic = 0x64743a6e63636c31;  // "dt:nccl1"
constexpr int kPorts = 10;
constexpr int kRounds = 100;  // of looking for the server, a tenth of a second apart
constexpr std::size_t kLongest = 4096;

struct Request {
  std::uint64_t magic = kMagic;
  std::uint32_t world = 0;
  std::uint32_t put = 0;  // else get
  std::uint32_t key_bytes = 0, value_bytes = 0;
};

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void set_patience(std::chrono::milliseconds time) const {
    const timeval tv{time.count() / 1000, time.count() % 1000 * 1000};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  }
  bool write(const void* data, std::size_t bytes) const {
    for (auto* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t n = ::send(fd_, at, bytes, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += n, bytes -= n;
    }
    return true;
  }
  bool read(void* data, std::size_t bytes) const {
    for (auto* at = static_cast<char*>(data); bytes > 0;) {
      const ssize_t n = ::recv(fd_, at, bytes, 0);
      if (n <= 0) return false;
      at += n, bytes -= n;
    }
    return true;
  }

 private:
  int fd_;
};

// Rank 0's table, served by threads that live as long as the process.
class Server {
 public:
  explicit Server(std::uint32_t world) : world_(world) {}

  bool listen(int port) {
    listener_ = ::socket(AF_INET6, SOCK_STREAM, 0);
    const int off = 0;
    setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    const bool bound = bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    if (!bound || ::listen(listener_, 4096) != 0) return close(listener_), false;
    std::thread([this] { accept_all(); }).detach();
    return true;
  }

 private:
  void accept_all() {
    for (;;) {
      Socket peer(::accept(listener_, nullptr, nullptr));
      if (peer.open()) std::thread([this, peer = std::move(peer)] { serve(peer); }).detach();
    }
  }

  void serve(const Socket& peer) {
    Request request;
    if (!peer.read(&request, sizeof request) || request.magic != kMagic || request.world != world_) return;
    if (request.key_bytes > kLongest || request.value_bytes > kLongest) return;
    std::string key(request.key_bytes, '\0'), value(request.value_bytes, '\0');
    if (!peer.write(&kMagic, sizeof kMagic) || !peer.read(key.data(), key.size())) return;
    if (request.put != 0) {
      if (peer.read(value.data(), value.size())) put(key, value);
      peer.write(&kMagic, sizeof kMagic);
    } else {
      value = get(key);
      peer.write(value.data(), value.size());
    }
  }

  void put(const std::string& key, std::string value) {
    std::lock_guard lock(mutex_);
    table_[key] = std::move(value);
    changed_.notify_all();
  }
  std::string get(const std::string& key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return table_.count(key) != 0; });
    return table_[key];
  }

  std::uint32_t world_;
  int listener_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> table_;
};

Socket connect_to(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return Socket(-1);
  for (addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype, a->ai_protocol));
    if (socket.open() && connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0) {
      freeaddrinfo(found);
      return socket;
    }
  }
  freeaddrinfo(found);
  return Socket(-1);
}

// A key like another, which every rank waits for as long as it lives.
constexpr const char* kAbort = "abort";
constexpr std::size_t kAbortBytes = 1024;

class TcpExchange final : public IdExchange {
 public:
  TcpExchange(std::string host, int port, int rank, int size, std::chrono::milliseconds timeout)
      : host_(std::move(host)), port_(port), rank_(rank), size_(size), timeout_(timeout) {
    if (rank == 0) serve();
    std::thread(&TcpExchange::hear, host_, port_, size_, heard_).detach();
  }

  void share(void* data, std::size_t bytes, const std::vector<std::int64_t>& members, const std::string& key) override {
    const bool first = rank_ == members[0];
    const auto deadline = Clock::now() + timeout_;
    while (Clock::now() < deadline) {
      for (int i = 0; i < kPorts; ++i) {
        if (ask(host_, port_ + i, size_, first, key, data, bytes, timeout_)) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    throw CommError("rank " + std::to_string(rank_) + " could not " + (first ? "give" : "get") +
                    " the id of communicator " + key + " at " + host_ + ":" + std::to_string(port_) +
                    " (rank 0) in time");
  }

  void abort(const std::string& text) override {
    std::string padded = text.substr(0, kAbortBytes - 1);
    padded.resize(kAbortBytes, '\0');
    for (int i = 0; i < kPorts; ++i) {
      if (ask(host_, port_ + i, size_, true, kAbort, padded.data(), padded.size(), timeout_)) return;
    }
  }
  std::string failure() override {
    std::lock_guard lock(heard_->mutex);
    return heard_->text;
  }

 private:
  struct Heard {
    std::mutex mutex;
    std::string text;
  };

  // On a thread of its own: the server answers when somebody aborts, or closes with rank 0.
  static void hear(std::string host, int port, int size, std::shared_ptr<Heard> heard) {
    std::string text(kAbortBytes, '\0');
    constexpr std::chrono::milliseconds forever{0};
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kPorts; ++i) {
        if (!ask(host, port + i, size, false, kAbort, text.data(), text.size(), forever)) continue;
        std::lock_guard lock(heard->mutex);
        heard->text = text.c_str();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void serve() {  // the server stays for the process: a peer may ask late
    auto* server = new Server(static_cast<std::uint32_t>(size_));
    for (int i = 0; i < kPorts; ++i) {
      if (server->listen(port_ + i)) return;
    }
    throw CommError("rank 0 can listen on none of the ports " + std::to_string(port_) + " to " +
                    std::to_string(port_ + kPorts - 1));
  }

  static bool ask(const std::string& host, int port, int size, bool put, const std::string& key, void* data,
                  std::size_t bytes, std::chrono::milliseconds patience) {
    const Socket server = connect_to(host, port);
    if (!server.open()) return false;
    server.set_patience(std::chrono::seconds(1));
    Request request;
    request.world = static_cast<std::uint32_t>(size);
    request.put = put ? 1 : 0;
    request.key_bytes = static_cast<std::uint32_t>(key.size());
    request.value_bytes = static_cast<std::uint32_t>(bytes);
    std::uint64_t answer = 0;
    if (!server.write(&request, sizeof request) || !server.read(&answer, sizeof answer) || answer != kMagic)
      return false;
    server.set_patience(patience);
    if (!server.write(key.data(), key.size())) return false;
    if (!put) return server.read(data, bytes);
    return server.write(data, bytes) && server.read(&answer, sizeof answer) && answer == kMagic;
  }

  std::string host_;
  int port_, rank_, size_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
};

}  // namespace

std::shared_ptr<IdExchange> exchange_over_tcp(const std::string& host, int port, int rank, int size,
                                              std::chrono::milliseconds timeout) {
  return std::make_shared<TcpExchange>(host, port, rank, size, timeout);
}

}  // namespace dtensor::nccl
