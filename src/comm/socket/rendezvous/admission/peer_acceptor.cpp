// Tells requests to join from greetings of higher ranks, by their first number, and answers each.
#include "comm/socket/rendezvous/admission/peer_acceptor.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "comm/socket/rendezvous/secret.h"

namespace dtensor::sockets {
namespace {

// A value at a known address of each process, which another process reads to test whether it can access that memory.
std::uint64_t draw_cookie() {
  std::uint64_t value = 0;
  fill_random(&value, sizeof value);
  return value;
}
const std::uint64_t& cookie() {
  static const std::uint64_t value = draw_cookie();
  return value;
}

}  // namespace

Hello make_hello(int from, int to, const std::vector<Member>& members) {
  Hello hello;
  hello.from = static_cast<std::uint32_t>(from);
  hello.to = static_cast<std::uint32_t>(to);
  hello.token = members[from].token;
  hello.pid = getpid();
  hello.cookie_address = reinterpret_cast<std::uint64_t>(&cookie());
  hello.cookie = cookie();
  return hello;
}

std::string check_hello(const Hello& hello, int from, int to, const std::vector<Member>& members) {
  const auto receiver = static_cast<std::uint32_t>(to);
  if (hello.magic != kHelloMagic) return "it sent no request of a rank";
  const bool expected =
      from < 0 ? hello.from > receiver && hello.from < members.size() : hello.from == static_cast<std::uint32_t>(from);
  if (hello.to != receiver || !expected || hello.from >= members.size() || hello.token != members[hello.from].token) {
    return "it claims to be rank " + std::to_string(hello.from) + ", but has no token of this rank";
  }
  return "";
}

pid_t readable(const Hello& peer) {
  std::uint64_t seen = 0;
  const iovec mine{&seen, sizeof seen}, theirs{reinterpret_cast<void*>(peer.cookie_address), sizeof seen};
  const auto pid = static_cast<pid_t>(peer.pid);
  return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == sizeof seen && seen == peer.cookie ? pid : 0;
}

PeerAcceptor::PeerAcceptor(const RendezvousOptions& options, JobTable* table)
    : Acceptor(options.rank), rank_(options.rank), table_(table), peers_(options.size) {}

std::vector<std::int64_t> PeerAcceptor::missing() const {
  std::vector<std::int64_t> ranks;
  for (std::size_t r = static_cast<std::size_t>(rank_) + 1; r < peers_.size(); ++r) {
    if (!peers_[r].stream.open()) ranks.push_back(static_cast<std::int64_t>(r));
  }
  return ranks;
}

void PeerAcceptor::send_to_admitted(const std::string& reply, bool last) {
  for (Pending& p : pending()) {
    if (!p.entry.admitted || !p.stream.open()) continue;
    p.out += reply;
    p.last_reply = last;
  }
}

bool PeerAcceptor::has_output() const {
  return std::any_of(pending().begin(), pending().end(), [](const Pending& p) { return !p.out.empty(); });
}

// The first message begins with a magic number.
bool PeerAcceptor::may_begin(const Pending& pending) const {
  const auto begins = [&](std::uint64_t magic) {
    const std::size_t known = std::min(pending.in.size(), sizeof magic);
    return bytes_of(magic).substr(0, known) == std::string_view(pending.in).substr(0, known);
  };
  return pending.entry.asked || begins(kHelloMagic) || (table_ != nullptr && begins(kJoinMagic));
}

void PeerAcceptor::receive(Pending& pending) {
  const bool greets = std::string_view(pending.in).starts_with(bytes_of(kHelloMagic));
  pending.entry.asked || !greets ? join(pending) : greet(pending);
}

void PeerAcceptor::join(Pending& pending) {
  JobTable::Entry& entry = pending.entry;
  const JobTable::Outcome outcome = entry.asked ? table_->receive(entry, read_as<Answer>(pending.in), pending.address)
                                                : table_->receive(entry, read_as<Join>(pending.in));
  pending.out += outcome.reply;
  pending.wanted = entry.admitted ? 0 : sizeof(Answer);
  pending.last_reply = outcome.closed;
  if (!outcome.refusal.empty()) refuse(pending, outcome.refusal);
}

void PeerAcceptor::greet(Pending& pending) {
  if (members_.empty()) return refuse(pending, "it sent no request of a rank");
  const auto hello = read_as<Hello>(pending.in);
  const std::string why = check_hello(hello, -1, rank_, members_);
  if (!why.empty()) return refuse(pending, why);
  Peer& peer = peers_[hello.from];
  if (peer.stream.open()) return refuse(pending, "it is a second connection of rank " + std::to_string(hello.from));
  const Hello answer = make_hello(rank_, static_cast<int>(hello.from), members_);
  if (::send(pending.stream.fd(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof answer) return;
  const bool same_host = pending.same_host;
  peer = {std::move(pending.stream), same_host, same_host ? readable(hello) : 0, pending.address};
  pending.stream.reset();  // moving swaps
}

void PeerAcceptor::closed(const Pending& pending) {
  if (table_ != nullptr) table_->leave(pending.entry);
}

}  // namespace dtensor::sockets
