// Each request is a separate connection. It begins with a magic number, the world size and the job; the server answers
// with the magic number at once, and later with the value. A process has one server per port, with a table for each of
// its jobs: ports are few, and a program may call launch() many times.
#include "comm/socket/rendezvous/store.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/socket/stream.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kStoreMagic = 0x64743a73746f7231;  // "dt:stor1"
constexpr int kPorts = 10;
constexpr std::uint32_t kLongest = 4096;
constexpr std::chrono::seconds kAnswer{1};      // for a server to identify itself
constexpr std::chrono::seconds kConnection{5};  // for a host to accept a connection
constexpr std::chrono::milliseconds kRound{50};

struct Request {
  std::uint64_t magic = kStoreMagic, job = 0;
  std::uint32_t world = 0;
  std::uint32_t put = 0;  // else get
  std::uint32_t key_bytes = 0, value_bytes = 0;
};

class Server {
 public:
  bool listen(int port) {
    listener_ = listen_tcp(port);
    if (!listener_.open()) return false;
    std::thread([this] {
      for (;;) {
        auto peer = std::make_shared<Stream>(accept_within(listener_, std::chrono::minutes(10)));
        if (peer->open()) std::thread([this, peer] { serve(*peer); }).detach();
      }
    }).detach();
    return true;
  }
  // False in a process that was forked from this one, since its threads were not copied.
  bool listens_on(int port) const { return pid_ == getpid() && port_of(listener_) == port; }

  void begin(const RendezvousOptions& options) {
    const std::lock_guard lock(mutex_);
    tables_.try_emplace(JobKey(options.size, options.job));
  }

 private:
  using Table = std::map<std::string, std::string>;
  using JobKey = std::pair<std::uint32_t, std::uint64_t>;  // world size and job number

  Table* table_of(const Request& request) {
    const std::lock_guard lock(mutex_);
    const auto found = tables_.find(JobKey(request.world, request.job));
    return found == tables_.end() ? nullptr : &found->second;  // map entries do not move
  }

  void serve(const Stream& peer) {
    Request request;
    peer.set_timeout(kAnswer * 10);
    if (!peer.read_all(&request, sizeof request) || request.magic != kStoreMagic) return;
    Table* table = table_of(request);
    if (table == nullptr) return;
    if (request.key_bytes > kLongest || request.value_bytes > kLongest) return;
    std::string key(request.key_bytes, '\0'), value(request.value_bytes, '\0');
    if (!peer.write_all(&kStoreMagic, sizeof kStoreMagic) || !peer.read_all(key.data(), key.size())) return;
    if (!peer.read_all(value.data(), value.size())) return;
    if (request.put != 0) {
      put(*table, key, std::move(value));
    } else {
      value = get(*table, key);
    }
    const auto bytes = static_cast<std::uint32_t>(value.size());
    if (peer.write_all(&bytes, sizeof bytes)) peer.write_all(value.data(), value.size());
  }

  void put(Table& table, const std::string& key, std::string value) {
    const std::lock_guard lock(mutex_);
    table[key] = std::move(value);
    changed_.notify_all();
  }
  std::string get(Table& table, const std::string& key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return table.count(key) != 0; });
    return table[key];
  }

  const pid_t pid_ = getpid();
  Stream listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<JobKey, Table> tables_;
};

// This process's server at that port, started on first use; null if the port is in use.
Server* server_at(int port) {
  static std::mutex mutex;
  static auto& servers = *new std::vector<Server*>;  // never destroyed
  const std::lock_guard lock(mutex);
  for (Server* server : servers) {
    if (server->listens_on(port)) return server;
  }
  auto server = std::make_unique<Server>();
  return server->listen(port) ? servers.emplace_back(server.release()) : nullptr;
}

}  // namespace

Store::Store(RendezvousOptions options) : options_(std::move(options)) {
  if (options_.rank != 0) return;
  for (int i = 0; i < kPorts; ++i) {
    Server* server = server_at(options_.port + i);
    if (server == nullptr) continue;
    server->begin(options_);
    return;
  }
  throw CommError("rank 0 could not listen on any of the ports " + std::to_string(options_.port) + " to " +
                  std::to_string(options_.port + kPorts - 1));
}

void Store::put(const std::string& key, const std::string& value) {
  std::string copy = value;
  ask_all(true, key, copy);
}

std::string Store::get(const std::string& key) {
  std::string value;
  ask_all(false, key, value);
  return value;
}

void Store::ask_all(bool put, const std::string& key, std::string& value) {
  const auto deadline = Clock::now() + options_.timeout;
  do {
    for (int i = 0; i < kPorts; ++i) {
      const int port = found_ >= 0 ? found_ : options_.port + i;
      if (ask(port, deadline, put, key, value)) {
        found_ = port;
        return;
      }
    }
    std::this_thread::sleep_for(kRound);
  } while (Clock::now() < deadline);
  throw CommError("rank " + std::to_string(options_.rank) + " could not " + (put ? "set " : "get ") + key + " at " +
                  options_.host + ":" + std::to_string(options_.port) + " (rank 0) within " +
                  std::to_string(options_.timeout.count() / 1000) + " s");
}

bool Store::ask(int port, Clock::time_point deadline, bool put, const std::string& key, std::string& value) {
  const auto left = [&] {
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    return std::max(time, std::chrono::milliseconds(1));
  };
  const Stream server = connect_tcp(options_.host, port, std::min<std::chrono::milliseconds>(left(), kConnection));
  if (!server.open()) return false;
  server.set_timeout(kAnswer);
  Request request;
  request.job = options_.job;
  request.world = static_cast<std::uint32_t>(options_.size);
  request.put = put ? 1 : 0;
  request.key_bytes = static_cast<std::uint32_t>(key.size());
  request.value_bytes = put ? static_cast<std::uint32_t>(value.size()) : 0;
  std::uint64_t answer = 0;
  if (!server.write_all(&request, sizeof request) || !server.read_all(&answer, sizeof answer) || answer != kStoreMagic)
    return false;
  own_host_ = own_address(server);
  server.set_timeout(left());
  std::uint32_t bytes = 0;
  if (!server.write_all(key.data(), key.size()) || (put && !server.write_all(value.data(), value.size()))) return false;
  if (!server.read_all(&bytes, sizeof bytes) || bytes > kLongest) return false;
  value.assign(bytes, '\0');
  return server.read_all(value.data(), value.size());
}

}  // namespace dtensor::sockets
