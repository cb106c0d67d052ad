// Decides whether a process enters the job: it must be of this job and prove that it knows the secret, if there is one.
#include "comm/socket/rendezvous/admission/job_table.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "comm/socket/rendezvous/secret.h"

namespace dtensor::sockets {

Digest join_proof(const std::string& secret, const char* role, const Join& join, const Digest& nonce,
                  const Member& member) {
  if (secret.empty()) return {};
  std::string text = role;
  text.append(bytes_of(join)).append(nonce.begin(), nonce.end()).append(bytes_of(member));
  return keyed_digest(secret, text);
}

std::string reply(Reply::Kind kind, std::string_view text, const Digest& digest) {
  if (kind != Reply::table) text = text.substr(0, kLongestText);
  Reply header;
  header.kind = kind;
  header.bytes = static_cast<std::uint32_t>(text.size());
  header.digest = digest;
  return std::string(bytes_of(header)).append(text);
}

JobTable::JobTable(const RendezvousOptions& options)
    : options_(options), members_(options.size), largest_size_(static_cast<std::uint32_t>(options.size)) {
  for (Member& member : members_) fill_random(member.token.data(), member.token.size());
}

std::vector<std::int64_t> JobTable::missing() const {
  std::vector<std::int64_t> ranks;
  for (std::size_t r = 1; r < members_.size(); ++r) {
    if (members_[r].port == 0) ranks.push_back(static_cast<std::int64_t>(r));
  }
  return ranks;
}

std::string JobTable::table() const {
  std::string bytes;
  for (const Member& member : members_) bytes += bytes_of(member);
  return reply(Reply::table, bytes);
}

JobTable::Outcome JobTable::refuse(const std::string& to_peer, const std::string& to_log) const {
  return {reply(Reply::error, to_peer), to_log, true};
}

JobTable::Outcome JobTable::receive(Entry& entry, const Join& join) const {
  if (join.job != options_.job) return {reply(Reply::other_job), "", true};
  if ((join.has_secret != 0) != !options_.secret.empty()) {
    const char* who =
        options_.secret.empty() ? "it has a secret and rank 0 has none" : "it has no secret and rank 0 has one";
    return refuse(c10::str("rank 0 closed the connection of rank ", join.rank, ": ", who,
                           "; set DTENSOR_SECRET or DTENSOR_SECRET_FILE equally on all ranks"),
                  who);
  }
  entry.join = join;
  entry.asked = true;
  fill_random(entry.nonce.data(), entry.nonce.size());
  return {reply(Reply::challenge, {}, entry.nonce), "", false};
}

JobTable::Outcome JobTable::receive(Entry& entry, const Answer& answer, const std::string& address) {
  const std::uint32_t rank = entry.join.rank;
  const Digest expected = join_proof(options_.secret, kJoiningRole, entry.join, entry.nonce, answer.member);
  if (!equal_digests(answer.proof, expected)) {
    return refuse(c10::str("rank 0 closed the connection of rank ", rank, ": its secret differs from that of rank 0; ",
                           "set DTENSOR_SECRET or DTENSOR_SECRET_FILE equally on all ranks"),
                  c10::str("it does not know the secret, and claims to be rank ", rank));
  }
  seen_.insert(rank);
  largest_size_ = std::max(largest_size_, entry.join.size);
  if (failure_.empty() && entry.join.size != members_.size()) {
    failure_ = c10::str("ranks were started with different numbers of ranks: rank 0 is one of ", options_.size,
                        ", rank ", rank, " (", address, ") is one of ", entry.join.size, "; start all with the same");
  }
  return failure_.empty() ? admit(entry, answer.member) : refuse(failure_, "");
}

JobTable::Outcome JobTable::admit(Entry& entry, const Member& member) {
  const std::uint32_t rank = entry.join.rank;
  const std::string claim = c10::str("it claims to be rank ", rank, " of ", entry.join.size);
  if (rank == 0 || rank >= members_.size() || member.port == 0 || member.port > 65535) {
    return refuse(c10::str("expected a rank in [1, ", options_.size, ") with a port, got rank ", rank, " with port ",
                           member.port, rank == 0 ? "; two processes were started as rank 0" : ""),
                  claim);
  }
  if (members_[rank].port != 0) {
    return refuse(c10::str("rank ", rank, " has joined already, as process ", members_[rank].pid, " at ",
                           text_of(members_[rank].host), "; give each process another rank"),
                  claim + ", which has joined");
  }
  enter(rank, member);
  entry.admitted = true;
  return {reply(Reply::admitted, {}, join_proof(options_.secret, kTableRole, entry.join, entry.nonce, member)), "",
          false};
}

void JobTable::enter(std::uint32_t rank, const Member& member) {
  const Token token = members_[rank].token;
  members_[rank] = member;
  members_[rank].token = token;
}

void JobTable::leave(const Entry& entry) {
  if (entry.admitted && !complete()) members_[entry.join.rank].port = 0;
}

}  // namespace dtensor::sockets
