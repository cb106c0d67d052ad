// Rank 0's table of the ranks of a job, and the decision who enters it. Reads and writes bytes only; PeerAcceptor moves
// them.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/socket/rendezvous/messages.h"
#include "comm/socket/rendezvous/options.h"

namespace dtensor::sockets {

// What a joining rank and rank 0 prove to each other: that they know the secret, for these messages.
Digest join_proof(const std::string& secret, const char* role, const Join& join, const Digest& nonce,
                  const Member& member);
inline constexpr const char *kJoiningRole = "dtensor joining rank", *kTableRole = "dtensor rank 0";

// A reply and what follows it; longer texts are truncated.
std::string reply(Reply::Kind kind, std::string_view text = {}, const Digest& digest = {});

class JobTable {
 public:
  // What one connection has said so far.
  struct Entry {
    Join join;
    Digest nonce{};
    bool asked = false, admitted = false;
  };
  // `closed`: the connection is closed after the reply, and `refusal`, if any, is logged.
  struct Outcome {
    std::string reply, refusal;
    bool closed = false;
  };

  explicit JobTable(const RendezvousOptions& options);
  void set_rank_0(const Member& mine) { enter(0, mine); }

  // The two messages of a connection, from `address`.
  Outcome receive(Entry& entry, const Join& join) const;
  Outcome receive(Entry& entry, const Answer& answer, const std::string& address);
  void leave(const Entry& entry);  // the connection closed; before all have joined its rank may join again

  bool complete() const { return missing().empty(); }
  std::vector<std::int64_t> missing() const;
  const std::vector<Member>& members() const { return members_; }
  std::string table() const;  // the reply for all members
  // Why the job cannot start: two ranks were started with different numbers of ranks. Empty: it can.
  const std::string& failure() const { return failure_; }
  bool all_seen() const { return seen_.size() + 1 >= largest_size_; }  // every rank that may exist has called once

 private:
  void enter(std::uint32_t rank, const Member& member);  // keeps the token
  Outcome admit(Entry& entry, const Member& member);
  Outcome refuse(const std::string& to_peer, const std::string& to_log) const;

  RendezvousOptions options_;
  std::vector<Member> members_;  // with port 0: it has not joined
  std::set<std::uint32_t> seen_;
  std::uint32_t largest_size_;
  std::string failure_;
};

}  // namespace dtensor::sockets
