// The incoming connections of one rank: on rank 0 of all ranks that join, and on each rank of the higher ranks.
#pragma once

#include <sys/types.h>

#include "comm/socket/rendezvous/admission/acceptor.h"

namespace dtensor::sockets {

struct Peer {
  Stream stream;  // not open for this rank itself
  bool same_host = false;
  pid_t readable = 0;     // the process whose memory this process can read, or 0
  std::string address{};  // for messages
};

// The Hello of a rank to another one.
Hello make_hello(int from, int to, const std::vector<Member>& members);
// Why this is not the Hello of rank `from` to rank `to`; empty if it is. `from` -1: of any rank above `to`.
std::string check_hello(const Hello& hello, int from, int to, const std::vector<Member>& members);
// That process if this one can read its memory, else 0.
pid_t readable(const Hello& peer);

class PeerAcceptor final : public Acceptor {
 public:
  // `table`: of rank 0, else null.
  PeerAcceptor(const RendezvousOptions& options, JobTable* table);

  // Connections of higher ranks are accepted from now on.
  void set_members(const std::vector<Member>& members) { members_ = members; }
  void send_to_admitted(const std::string& reply, bool last);
  bool has_output() const;
  std::vector<std::int64_t> missing() const;  // higher ranks without a connection
  std::vector<Peer>& peers() { return peers_; }

 private:
  bool may_begin(const Pending& pending) const override;
  void receive(Pending& pending) override;
  void closed(const Pending& pending) override;
  void join(Pending& pending);
  void greet(Pending& pending);

  const int rank_;
  JobTable* const table_;
  std::vector<Member> members_;  // empty until all have joined
  std::vector<Peer> peers_;
};

}  // namespace dtensor::sockets
