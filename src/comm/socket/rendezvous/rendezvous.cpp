// Each rank listens on its own TCP port, and on a Unix socket for ranks of its host, and publishes both in the store.
// The higher rank of a pair connects to the lower one. The listen backlog holds the connection until the lower rank
// accepts it.
#include "comm/socket/rendezvous/rendezvous.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRendezvousMagic = 0x64743a6d65657431;  // "dt:meet1"

constexpr std::chrono::milliseconds kHello{5000};  // for a new connection to identify itself

// A value at a known address of each process, which another process reads to test whether it can access that memory.
std::uint64_t cookie = 0;

struct Hello {
  std::uint64_t magic = kRendezvousMagic;
  std::uint64_t job = 0;
  std::int64_t rank = 0;
  std::int64_t pid = 0;
  std::uint64_t cookie_address = 0, cookie = 0;
};

// A rank's entry in the store: host, port, name of its Unix socket, boot id of its host.
struct Address {
  std::string host, port, name, boot;
  std::string str() const { return host + ' ' + port + ' ' + name + ' ' + boot; }
  static Address parse(const std::string& text) {
    Address a;
    std::istringstream(text) >> a.host >> a.port >> a.name >> a.boot;
    return a;
  }
};

std::string boot_id() {
  std::string id = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return id + '/' + host;
}

std::string random_name() {
  std::random_device device;
  std::ostringstream text;
  text << "dtensor-" << getpid() << '-' << std::hex << device() << device();
  return text.str();
}

pid_t readable(const Hello& peer) {
  std::uint64_t seen = 0;
  const iovec mine{&seen, sizeof seen}, theirs{reinterpret_cast<void*>(peer.cookie_address), sizeof seen};
  const auto pid = static_cast<pid_t>(peer.pid);
  return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == sizeof seen && seen == peer.cookie ? pid : 0;
}

class Rendezvous {
 public:
  explicit Rendezvous(const RendezvousOptions& options)
      : options_(options), store_(options), deadline_(Clock::now() + options.timeout), peers_(options.size) {
    std::random_device device;
    cookie = (static_cast<std::uint64_t>(device()) << 32) | device();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // some kernels require this for process_vm_readv
    tcp_ = listen_tcp(0);
    unix_ = listen_unix(name_);
    if (!tcp_.open()) throw CommError(c10::str("rank ", options.rank, " could not listen on any port"));
  }

  std::vector<Peer> run() {
    announce();
    for (int r = 0; r < options_.rank; ++r) connect_to(r);
    for (int missing = options_.size - 1 - options_.rank; missing > 0; --missing) accept_one();
    return std::move(peers_);
  }

 private:
  void announce() {
    store_.put("here/" + std::to_string(options_.rank), "");  // finds the table and this host's address
    const Address mine{options_.rank == 0 ? options_.host : store_.own_host(), std::to_string(port_of(tcp_)), name_,
                       boot_};
    store_.put(key(options_.rank), mine.str());
  }

  static std::string key(int rank) { return "the address of rank " + std::to_string(rank); }

  void connect_to(int rank) {
    const Address address = Address::parse(store_.get(key(rank)));
    Stream stream;
    if (address.boot == boot_) stream = connect_unix(address.name);
    if (!stream.open()) stream = connect_tcp(address.host, std::stoi(address.port), left());
    if (!stream.open() || !greet(std::move(stream), rank, address.boot == boot_)) {
      throw CommError(c10::str("rank ", options_.rank, " could not connect to rank ", rank, " at ", address.host, ":",
                               address.port));
    }
  }

  // Both sides send a Hello; other connections to this port are ignored.
  bool greet(Stream stream, std::int64_t expected, bool same_host) {
    Hello mine, theirs;
    mine.job = options_.job;
    mine.rank = options_.rank;
    mine.pid = getpid();
    mine.cookie_address = reinterpret_cast<std::uint64_t>(&cookie);
    mine.cookie = cookie;
    stream.set_timeout(expected >= 0 ? left() : std::min(left(), kHello));
    if (!stream.write_all(&mine, sizeof mine) || !stream.read_all(&theirs, sizeof theirs)) return false;
    if (theirs.magic != kRendezvousMagic || theirs.job != options_.job) return false;
    if (expected >= 0 ? theirs.rank != expected : theirs.rank <= options_.rank || theirs.rank >= options_.size)
      return false;
    Peer& peers = peers_[theirs.rank];
    if (peers.stream.open()) return false;
    stream.make_nonblocking();
    peers = {std::move(stream), same_host, same_host ? readable(theirs) : 0};
    return true;
  }

  void accept_one() {
    for (;;) {
      const auto slice = std::chrono::milliseconds(5);
      Stream stream = accept_within(unix_.open() ? unix_ : tcp_, slice);
      const bool same_host = stream.open() && unix_.open();
      if (!stream.open()) stream = accept_within(tcp_, std::chrono::milliseconds(0));
      if (stream.open() && greet(std::move(stream), -1, same_host)) return;
      if (left().count() > 1) continue;
      throw CommError(c10::str("rank ", options_.rank, " waited ", options_.timeout.count() / 1000, " s for rank ",
                               first_missing_rank(), " to connect"));
    }
  }

  int first_missing_rank() const {
    for (int r = options_.rank + 1; r < options_.size; ++r) {
      if (!peers_[r].stream.open()) return r;
    }
    return options_.size;
  }

  std::chrono::milliseconds left() const {
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    return std::max(time, std::chrono::milliseconds(1));
  }

  RendezvousOptions options_;
  Store store_;
  Clock::time_point deadline_;
  std::vector<Peer> peers_;
  std::string name_ = random_name(), boot_ = boot_id();
  Stream tcp_, unix_;
};

}  // namespace

std::vector<Peer> rendezvous(const RendezvousOptions& options) {
  if (options.size == 1) return std::vector<Peer>(1);
  return Rendezvous(options).run();
}

}  // namespace dtensor::sockets
