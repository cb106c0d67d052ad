// Exchanges between pairs. Each rank sends header and data at once, but receives data only after the header matched.
// So the comparison of calls needs no extra round, and no message meets a smaller buffer (Open MPI 4.1 writes past its
// end in copies between processes).
#include "comm/p2p/collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/error_messages.h"
#include "comm/record/call_history.h"
#include "comm/record/caller.h"

namespace dtensor::p2p {

std::string ProcessGroup::describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) const {
  return dtensor::describe(call, outputs, inputs) + " on " + describe_group(call.label ? *call.label : label, ranks) +
         caller_text(call);
}

Collective::Collective(ProcessGroup& members, const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs)
    : group_(members), call_(call), outputs_(outputs), inputs_(inputs) {
  for (const auto& t : outputs) kept_.push_back(t);
  for (const auto& t : inputs) kept_.push_back(t);
  if (members.job.failed()) members.job.throw_failure(operation());
}

// A list has one or more tensors for each member.
Sizes Collective::gives(int i) const {
  switch (call_.kind) {
    case CollectiveKind::all_gather:
      return Sizes(inputs_);
    case CollectiveKind::reduce_scatter:
      return Sizes(inputs_.slice(static_cast<std::size_t>(i) * outputs_.size(), outputs_.size()));
    case CollectiveKind::all_to_all:
      return Sizes(inputs_[i]);
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
      return Sizes(outputs_);
    default:
      return {};
  }
}

Sizes Collective::expects(int i) const {
  switch (call_.kind) {
    case CollectiveKind::all_gather:
      return Sizes(outputs_.slice(static_cast<std::size_t>(i) * inputs_.size(), inputs_.size()));
    case CollectiveKind::all_to_all:
      return Sizes(outputs_[i]);
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
      return Sizes(outputs_);
    default:
      return {};
  }
}

namespace {

// The recent calls of a rank, as a message of fixed size.
struct PackedHistory {
  struct Line {
    std::uint64_t number, signature;
    char text[256];
  };
  Line lines[CallHistory::kKept];
  std::int64_t count = 0;
};

PackedHistory packed_history(const CollectiveCall& call) {
  PackedHistory sent{};
  for (const auto& line : calls_of(0, call).lines) {
    auto& to = sent.lines[sent.count++];
    to.number = line.number;
    to.signature = line.signature;
    line.text.copy(to.text, sizeof to.text - 1);
  }
  return sent;
}

RankCalls unpacked(std::int64_t rank, const CallHeader& header, const PackedHistory& sent) {
  RankCalls calls{rank, header.operators, header.signature, {}};
  const auto count = std::clamp<std::int64_t>(sent.count, 0, CallHistory::kKept);  // received: arbitrary bytes
  for (const auto& line : c10::ArrayRef<PackedHistory::Line>(sent.lines, static_cast<std::size_t>(count))) {
    calls.lines.push_back({line.number, line.signature, std::string(line.text, strnlen(line.text, sizeof line.text))});
  }
  return calls;
}

}  // namespace

// All members detect different operators from the headers, and then exchange their call histories. This uses a
// separate channel, since the data of the failed collective are in transit.
std::string Collective::different_operators(const CallHeader& mine, const std::vector<CallHeader>& theirs) {
  bool comparable = true, differ = false;
  for (int i = 0; i < group_.size(); ++i) {
    if (i == group_.me) continue;
    comparable = comparable && are_comparable(mine, theirs[i]);
    differ = differ || !same_operators(mine, theirs[i]);
  }
  if (!comparable || !differ) return "";
  const auto sent = std::make_shared<PackedHistory>(packed_history(call_));
  const auto received = std::make_shared<std::vector<PackedHistory>>(group_.size());
  const int tag = static_cast<int>(group_.id % static_cast<std::uint64_t>(group_.job.max_tag()));
  MessageBatch exchange(group_.job, Channel::histories, tag);
  exchange.keep(sent), exchange.keep(received);
  for (int i = 0; i < group_.size(); ++i) {
    if (i == group_.me) continue;
    exchange.recv(&(*received)[i], sizeof(PackedHistory), group_.ranks[i]);
    exchange.send(sent.get(), sizeof(PackedHistory), group_.ranks[i]);
  }
  exchange.wait([&] { return operation(); });
  std::vector<RankCalls> members;
  for (int i = 0; i < group_.size(); ++i) {
    const bool me = i == group_.me;
    members.push_back(unpacked(group_.ranks[i], me ? mine : theirs[i], me ? *sent : (*received)[i]));
  }
  return describe_difference(members);
}

void Collective::compare(const std::vector<CallHeader>& mine, const std::vector<CallHeader>& theirs) {
  int bad = -1;
  for (int i = 0; i < group_.size() && bad < 0; ++i) {
    if (i != group_.me && !fits(mine[i], theirs[i])) bad = i;
  }
  if (bad < 0) return;
  const auto header_of = [&](int i) -> const CallHeader& { return i == group_.me ? mine[bad] : theirs[i]; };
  // If ranks have different numbers of failed calls, the cause is the last error of those with the most.
  std::uint64_t most = 0;
  for (int i = 0; i < group_.size(); ++i) most = std::max(most, header_of(i).failed_calls);
  std::vector<std::pair<std::int64_t, std::string>> errors;
  for (int i = 0; i < group_.size(); ++i) {
    errors.emplace_back(group_.ranks[i], header_of(i).failed_calls == most ? header_of(i).error_text() : "");
  }
  std::string text = failed_before(errors) + "ranks disagree on " +
                     describe_group(call_.label ? *call_.label : group_.label, group_.ranks) + ": ";
  text += different_operators(mine[bad], theirs);
  for (int i = 0; i < group_.size(); ++i) {
    text += (i > 0 ? "; rank " : "rank ") + std::to_string(group_.ranks[i]) + " called " + header_of(i).str();
  }
  group_.job.fail(text);
  group_.job.throw_failure(operation());
}

namespace {

// A thread's use of a group. The messages of its collectives have one tag, so those of two threads would mix.
class Turn {
 public:
  Turn(ProcessGroup& members, c10::function_ref<std::string()> operation) : busy_(members.in_collective) {
    if (!busy_.exchange(true)) return;
    members.job.fail(two_threads(members.ranks[static_cast<std::size_t>(members.me)], operation()));
    members.job.throw_failure(operation());
  }
  ~Turn() { busy_.store(false); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace

void Collective::run_transfers(const std::vector<Transfers>& parts) {
  const auto where = [&] { return operation(); };
  const Turn turn(group_, where);
  const int n = group_.size(), me = group_.me;
  const bool with_headers = group_.job.options().check_calls && !compared_;
  compared_ = true;
  const auto both = std::make_shared<std::array<std::vector<CallHeader>, 2>>();  // outlives an abandoned exchange
  auto& [mine, theirs] = *both;
  mine.resize(n);
  theirs.resize(n);
  const int tag = static_cast<int>(group_.id % static_cast<std::uint64_t>(group_.job.max_tag()));
  MessageBatch headers(group_.job, Channel::collectives, tag), data(group_.job, Channel::collectives, tag);
  for (const auto& t : kept_) data.keep(t);
  headers.keep(both);
  const auto from = [&](int k) { return (me + n - k) % n; };  // each rank starts with another peer
  const auto to = [&](int k) { return (me + k) % n; };
  const auto error = with_headers ? group_.job.last_error() : std::string();
  for (int k = 1; k < n && with_headers; ++k) headers.recv(&theirs[from(k)], sizeof(CallHeader), group_.ranks[from(k)]);
  for (int k = 1; k < n && with_headers; ++k) {
    mine[to(k)] = CallHeader(call_, group_.id, gives(to(k)), expects(to(k)));
    mine[to(k)].failed_calls = group_.job.failed_calls();
    mine[to(k)].record_error(error);
    headers.send(&mine[to(k)], sizeof(CallHeader), group_.ranks[to(k)]);
  }
  for (int k = 1; k < n; ++k) {
    for (const Transfer& part : parts[to(k)]) data.send(part.send_data, part.send_bytes, group_.ranks[to(k)]);
  }
  headers.wait(where, MessageBatch::WaitReason::peer_arrival);
  if (with_headers) compare(mine, theirs);
  for (int k = 1; k < n; ++k) {
    for (const Transfer& part : parts[from(k)]) data.recv(part.recv_data, part.recv_bytes, group_.ranks[from(k)]);
  }
  data.wait(where);
}

}  // namespace dtensor::p2p
