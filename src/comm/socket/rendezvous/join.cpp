// Tries the ports of rank 0 until one admits this rank, both prove that they know the secret, or time runs out.
#include "comm/socket/rendezvous/join.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "comm/socket/rendezvous/admission/acceptor.h"
#include "comm/socket/rendezvous/admission/job_table.h"
#include "comm/socket/rendezvous/secret.h"
#include "comm/socket/rendezvous/wait_notice.h"
#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAnswer{1000}, kLongestAnswer{4000};  // for a server to identify itself, doubled each round
constexpr milliseconds kConnection{5000};                    // for a host to accept a connection
constexpr milliseconds kBetweenAttempts{50};
constexpr milliseconds kReason{3000};  // for rank 0, whose timeout is the same, to say which ranks are missing

milliseconds until(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

struct Received {
  Reply header;
  std::string text;
};

// Nothing if the other end is not rank 0 of a job, or closed.
std::optional<Received> read_reply(const Stream& stream, const RendezvousOptions& options) {
  Received received;
  Reply& header = received.header;
  if (!stream.read_all(&header, sizeof header) || header.magic != kJoinMagic) return std::nullopt;
  const auto table_bytes = sizeof(Member) * static_cast<std::size_t>(options.size);
  const bool sized = header.kind == Reply::table ? header.bytes == table_bytes : header.bytes <= kLongestText;
  if (header.kind > Reply::table || !sized) return std::nullopt;
  received.text.resize(header.bytes);
  if (!stream.read_all(received.text.data(), received.text.size())) return std::nullopt;
  if (header.kind == Reply::error) throw CommError(received.text);
  return received;
}

Join make_join(const RendezvousOptions& options) {
  Join join;
  join.job = options.job;
  join.size = static_cast<std::uint32_t>(options.size);
  join.rank = static_cast<std::uint32_t>(options.rank);
  join.has_secret = options.secret.empty() ? 0 : 1;
  fill_random(join.nonce.data(), join.nonce.size());
  return join;
}

std::vector<Member> members_in(const std::string& text, const Stream& stream, int port) {
  std::vector<Member> members(text.size() / sizeof(Member));
  std::memcpy(static_cast<void*>(members.data()), text.data(), text.size());
  const std::string host = peer_address(stream);  // rank 0 listens where this rank joined
  members[0].host[host.copy(members[0].host, sizeof members[0].host - 1)] = 0;
  members[0].port = static_cast<std::uint32_t>(port);
  return members;
}

// Whether rank 0 proved that it knows the secret; without a secret, whether it admits this rank.
bool is_admitted(const std::optional<Received>& received, const RendezvousOptions& options, const Digest& proof) {
  if (!received || received->header.kind != Reply::admitted) return false;
  if (equal_digests(received->header.digest, proof)) return true;
  throw CommError(c10::str("rank ", options.rank, " found a process at ", options.host,
                           " that answers as rank 0 and does not know the secret"));
}

}  // namespace

std::vector<Member> join_over(const Stream& stream, int port, const RendezvousOptions& options,
                              milliseconds answer_time, milliseconds time, const Listen& listen) {
  const Join join = make_join(options);
  stream.set_timeout(answer_time);
  if (!stream.write_all(&join, sizeof join)) return {};
  const auto challenge = read_reply(stream, options);
  if (!challenge || challenge->header.kind != Reply::challenge) return {};
  Answer answer;
  const Digest& nonce = challenge->header.digest;
  answer.member = listen(own_address(stream));
  answer.proof = join_proof(options.secret, kJoiningRole, join, nonce, answer.member);
  if (!stream.write_all(&answer, sizeof answer)) return {};
  stream.set_timeout(time);
  const Digest proof = join_proof(options.secret, kTableRole, join, nonce, answer.member);
  if (!is_admitted(read_reply(stream, options), options, proof)) return {};
  while (const auto received = read_reply(stream, options)) {
    if (received->header.kind == Reply::table) return members_in(received->text, stream, port);
    if (received->header.kind == Reply::notice) print_notice(options.rank, received->text);
  }
  return {};
}

std::vector<Member> join_job(const RendezvousOptions& options, const Listen& listen) {
  const auto deadline = Clock::now() + options.timeout;
  const std::string rank_0 = c10::str("rank 0 at ", options.host, ":", options.port);
  WaitNotice notice;
  for (milliseconds answer_time = kAnswer; Clock::now() < deadline;) {
    for (int port = options.port; port < options.port + kPorts; ++port) {
      const Stream stream = connect_tcp(options.host, port, std::min(until(deadline), kConnection));
      if (!stream.open()) continue;
      auto members =
          join_over(stream, port, options, std::min(until(deadline), answer_time), until(deadline) + kReason, listen);
      if (!members.empty()) return members;
    }
    if (notice.due()) print_notice(options.rank, "waits for " + rank_0 + notice.duration());
    std::this_thread::sleep_for(kBetweenAttempts);
    answer_time = std::min(answer_time * 2, kLongestAnswer);
  }
  throw CommError(c10::str("rank ", options.rank, " waited ", options.timeout.count() / 1000, " s for ", rank_0,
                           ": it does not answer, or not all ranks have joined"));
}

}  // namespace dtensor::sockets
