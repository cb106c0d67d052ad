// Rank 0 listens at the address that the launcher names. Every other rank joins there, and gets the address and token
// of each rank when all have joined. Then the higher rank of a pair connects to the lower one: over a Unix socket on
// one host, else over TCP. The listen backlog holds the connection until the lower rank accepts it. All listeners are
// closed when all ranks are connected.
#include "comm/socket/rendezvous/rendezvous.h"

#include <c10/util/StringUtil.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "comm/error_messages.h"
#include "comm/record/hash.h"
#include "comm/socket/rendezvous/join.h"
#include "comm/socket/rendezvous/secret.h"
#include "comm/socket/rendezvous/wait_notice.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {

void allow_memory_reads(bool allowed) { prctl(PR_SET_PTRACER, allowed ? PR_SET_PTRACER_ANY : 0, 0, 0, 0); }

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{100}, kRetry{10};
constexpr milliseconds kFarewell{2000};  // for ranks that start a little later to get the error of the others

std::uint64_t own_host_id() {
  std::string id = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return hash_of(id + '/' + host);
}

std::string random_name() {
  std::uint64_t word = 0;
  fill_random(&word, sizeof word);
  std::ostringstream text;
  text << "dtensor-" << getpid() << '-' << std::hex << word;
  return text.str();
}

class Rendezvous {
 public:
  explicit Rendezvous(const RendezvousOptions& options)
      : options_(options), deadline_(Clock::now() + options.timeout) {}

  std::vector<Peer> run() {
    const std::vector<Member> members = options_.rank == 0 ? gather() : join();
    const auto here = [&](const Member& m) { return m.host_id == members[options_.rank].host_id; };
    if (std::count_if(members.begin(), members.end(), here) > 1) allow_memory_reads(true);
    acceptor_->set_members(members);
    for (int r = 0; r < options_.rank; ++r) connect_to(r, members);
    wait_until([&] { return acceptor_->missing().empty(); }, [&] { return acceptor_->missing(); });
    return std::move(acceptor_->peers());
  }

 private:
  std::vector<Member> gather() {
    std::vector<Stream> listeners;
    for (int port = options_.port; port < options_.port + kPorts && listeners.empty(); ++port) {
      listeners = listen_tcp(options_.host, port);
    }
    if (listeners.empty()) {
      throw CommError(c10::str("rank 0 could not listen on any of the ports ", options_.port, " to ",
                               options_.port + kPorts - 1, " of ", options_.host));
    }
    table_.emplace(options_);
    table_->set_rank_0(listen_on(std::move(listeners)));
    wait_until([&] { return table_->complete() || !table_->failure().empty(); }, [&] { return table_->missing(); });
    if (!table_->failure().empty()) fail(table_->failure());
    acceptor_->send_to_admitted(table_->table(), true);
    return table_->members();
  }

  std::vector<Member> join() {
    return join_job(options_, [&](const std::string& own_address) {
      std::vector<Stream> listeners = listen_tcp(own_address, 0);
      if (listeners.empty())
        throw CommError(c10::str("rank ", options_.rank, " could not listen on any port of ", own_address));
      Member mine = listen_on(std::move(listeners));
      mine.host[own_address.copy(mine.host, sizeof mine.host - 1)] = 0;
      return mine;
    });
  }

  // Again after a failed attempt to join.
  Member listen_on(std::vector<Stream> tcp) {
    Member mine;
    mine.host_id = own_host_id();
    mine.pid = static_cast<std::uint32_t>(getpid());
    mine.port = static_cast<std::uint32_t>(port_of(tcp.front()));
    const std::string name = random_name();
    name.copy(mine.name, sizeof mine.name - 1);
    acceptor_.emplace(options_, table_ ? &*table_ : nullptr);
    acceptor_->listen(std::move(tcp), false);
    std::vector<Stream> local;
    if (Stream listener = listen_unix(name); listener.open()) local.push_back(std::move(listener));
    acceptor_->listen(std::move(local), true);
    return mine;
  }

  // Again if the connection closes before the peer has read its first message, as when it closes those of strangers.
  void connect_to(int rank, const std::vector<Member>& members) {
    const Member& peer = members[rank];
    const bool same_host = peer.host_id == members[options_.rank].host_id;
    std::string why;
    do {
      Stream stream;
      if (same_host) stream = connect_unix(text_of(peer.name));
      if (!stream.open()) stream = connect_tcp(text_of(peer.host), static_cast<int>(peer.port), left());
      if (!stream.open()) {
        why = "no connection";
        break;
      }
      if (const auto hello = exchange(stream, make_hello(options_.rank, rank, members))) {
        why = check_hello(*hello, rank, options_.rank, members);
        if (why.empty()) return keep(std::move(stream), *hello, same_host);
        break;
      }
      why = "it closed the connection";
      std::this_thread::sleep_for(kRetry);
    } while (Clock::now() < deadline_);
    throw CommError(c10::str("rank ", options_.rank, " could not connect to rank ", rank, " at ", text_of(peer.host),
                             ":", peer.port, ": ", why));
  }

  std::optional<Hello> exchange(const Stream& stream, const Hello& mine) const {
    Hello theirs;
    stream.set_timeout(left());
    if (!stream.write_all(&mine, sizeof mine)) return std::nullopt;
    for (WaitNotice notice; !readable_within(stream, std::min(left(), kPoll)) && Clock::now() < deadline_;) {
      if (!notice.due()) continue;
      print_notice(options_.rank, c10::str("waits for rank ", mine.to, " to answer", notice.duration()));
    }
    if (!stream.read_all(&theirs, sizeof theirs)) return std::nullopt;
    return theirs;
  }

  void keep(Stream stream, const Hello& peer, bool same_host) {
    stream.make_nonblocking();
    const std::string address = describe_peer(stream);
    acceptor_->peers()[peer.from] = {std::move(stream), same_host, same_host ? readable(peer) : 0, address};
  }

  // Accepts until `done`, and says for which ranks it waits.
  template <class Done, class Missing>
  void wait_until(Done done, Missing missing) {
    for (WaitNotice notice; !done();) {
      acceptor_->poll(std::min(left(), kPoll));
      if (done()) return;
      const bool late = Clock::now() > deadline_;
      if (!late && !notice.due()) continue;
      const std::string whom = c10::str(" for ", ranks_text(missing()), " of ", options_.size, " to connect");
      if (late) fail(c10::str("rank ", options_.rank, " waited ", options_.timeout.count() / 1000, " s", whom));
      print_notice(options_.rank, "waits" + whom + notice.duration());
      const std::string text = c10::str("waits with rank ", options_.rank, whom, notice.duration());
      acceptor_->send_to_admitted(reply(Reply::notice, text), false);
    }
  }

  // Ends the job on the ranks that have joined, too.
  [[noreturn]] void fail(const std::string& why) {
    const auto end = Clock::now() + kFarewell;
    acceptor_->send_to_admitted(reply(Reply::error, why), true);
    const auto all_informed = [&] { return !table_ || table_->failure().empty() || table_->all_seen(); };
    while ((acceptor_->has_output() || !all_informed()) && Clock::now() < end) acceptor_->poll(kPoll);
    throw CommError(why);
  }

  milliseconds left() const {
    return std::max(std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now()), milliseconds(1));
  }

  const RendezvousOptions options_;
  const Clock::time_point deadline_;
  std::optional<JobTable> table_;  // of rank 0
  std::optional<PeerAcceptor> acceptor_;
};

}  // namespace

std::vector<Peer> rendezvous(const RendezvousOptions& options) {
  if (options.size == 1) return std::vector<Peer>(1);
  if (!options.secret.empty())
    (void)keyed_digest(options.secret, "");  // an error on each rank if it cannot be computed
  return Rendezvous(options).run();
}

}  // namespace dtensor::sockets
