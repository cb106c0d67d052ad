// Pairwise messages: each rank sends its header and its data at once, and receives data only after the header was
// right, so that comparing calls costs no round of its own, and no message meets a buffer of another size (OpenMPI 4.1
// writes past the end of one that is too short when it copies from process to process).
#include "comm/pairwise/collective.h"

#include <array>

#include "comm/describe.h"
#include "comm/memory/buffer_pool.h"
#include "comm/memory/copy.h"
#include "comm/record/call_history.h"
#include "comm/record/caller.h"

namespace dtensor::pairwise {
namespace {

bool is_dense(const at::Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

}  // namespace

std::string Members::describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) const {
  return dtensor::describe(call, outputs, inputs) + " on " + describe_group(call.label ? *call.label : label, ranks) +
         caller_text(call);
}

Collective::Collective(Members& members, const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs)
    : members_(members), call_(call), outputs_(outputs), inputs_(inputs) {
  for (const auto& t : outputs) kept_.push_back(t);
  for (const auto& t : inputs) kept_.push_back(t);
  if (members.job.failed()) members.job.throw_failure(place());
}

at::Tensor Collective::dense(const at::Tensor& t) {
  if (is_dense(t)) return t;
  at::Tensor copy = landing(t);
  copy_tensor(copy, t);
  return copy;
}

at::Tensor Collective::landing(const at::Tensor& t) {
  if (is_dense(t)) return t;
  at::Tensor place = pooled_empty(t.sizes(), t.scalar_type());
  keep(place);
  return place;
}

void copy_landed(const at::Tensor& to, const at::Tensor& landing) {
  if (!landing.is_same(to)) copy_tensor(to, landing);
}

// Lists have a tensor or several for each member that they are of.
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

// The latest calls of a rank in a message of one size.
struct SentHistory {
  struct Line {
    std::uint64_t number, signature;
    char text[256];
  };
  Line lines[CallHistory::kKept];
  std::int64_t count = 0;
};

SentHistory packed_history(const CollectiveCall& call) {
  SentHistory sent{};
  for (const auto& line : calls_of(0, call).lines) {
    auto& to = sent.lines[sent.count++];
    to.number = line.number;
    to.signature = line.signature;
    line.text.copy(to.text, sizeof to.text - 1);
  }
  return sent;
}

MemberCalls unpacked(std::int64_t rank, const Header& header, const SentHistory& sent) {
  MemberCalls calls{rank, header.operators, header.signature, {}};
  for (int i = 0; i < sent.count; ++i)
    calls.lines.push_back({sent.lines[i].number, sent.lines[i].signature, sent.lines[i].text});
  return calls;
}

}  // namespace

// Whether the members have parted is known to each of them alike, from the headers; then they tell each other what they
// called. On a channel of its own: the data of the failed collective are on their way.
std::string Collective::different_operators(const Header& mine, const std::vector<Header>& theirs) {
  bool all_told = mine.signature != 0, differ = false;
  for (int i = 0; i < members_.size(); ++i) {
    if (i == members_.me) continue;
    all_told = all_told && theirs[i].signature != 0;
    differ = differ || theirs[i].signature != mine.signature;
  }
  if (!all_told || !differ) return "";
  const auto sent = std::make_shared<SentHistory>(packed_history(call_));
  const auto received = std::make_shared<std::vector<SentHistory>>(members_.size());
  const int tag = static_cast<int>(members_.id % static_cast<std::uint64_t>(members_.job.largest_tag()));
  Exchange exchange(members_.job, Channel::histories, tag);
  exchange.keep(sent), exchange.keep(received);
  for (int i = 0; i < members_.size(); ++i) {
    if (i == members_.me) continue;
    exchange.recv(&(*received)[i], sizeof(SentHistory), members_.ranks[i]);
    exchange.send(sent.get(), sizeof(SentHistory), members_.ranks[i]);
  }
  exchange.wait([&] { return place(); });
  std::vector<MemberCalls> members;
  for (int i = 0; i < members_.size(); ++i) {
    const bool me = i == members_.me;
    members.push_back(unpacked(members_.ranks[i], me ? mine : theirs[i], me ? *sent : (*received)[i]));
  }
  return "their operators differ, " + first_difference(members) + "; ";
}

void Collective::compare(const std::vector<Header>& mine, const std::vector<Header>& theirs) {
  int bad = -1;
  for (int i = 0; i < members_.size() && bad < 0; ++i) {
    if (i != members_.me && !fits(mine[i], theirs[i])) bad = i;
  }
  if (bad < 0) return;
  std::vector<std::pair<std::int64_t, std::string>> errors;
  for (int i = 0; i < members_.size(); ++i)
    errors.emplace_back(members_.ranks[i], i == members_.me ? mine[bad].error : theirs[i].error);
  std::string text = failed_before(errors) + "ranks disagree on " +
                     describe_group(call_.label ? *call_.label : members_.label, members_.ranks) + ": ";
  text += different_operators(mine[bad], theirs);
  for (int i = 0; i < members_.size(); ++i) {
    const Header& header = i == members_.me ? mine[bad] : theirs[i];
    text += (i > 0 ? "; rank " : "rank ") + std::to_string(members_.ranks[i]) + " called " + header.str();
  }
  members_.job.fail(text);
  members_.job.throw_failure(place());
}

void Collective::run_parts(const std::vector<Parts>& parts) {
  const int n = members_.size(), me = members_.me;
  const bool with_headers = members_.job.options().check_calls && !compared_;
  compared_ = true;
  const auto both = std::make_shared<std::array<std::vector<Header>, 2>>();  // outlives an abandoned exchange
  auto& [mine, theirs] = *both;
  mine.resize(n);
  theirs.resize(n);
  const int tag = static_cast<int>(members_.id % static_cast<std::uint64_t>(members_.job.largest_tag()));
  Exchange headers(members_.job, Channel::collectives, tag), data(members_.job, Channel::collectives, tag);
  for (const auto& t : kept_) data.keep(t);
  headers.keep(both);
  const auto from = [&](int k) { return (me + n - k) % n; };  // not all ranks turn to the same one at once
  const auto to = [&](int k) { return (me + k) % n; };
  const auto error = with_headers ? members_.job.last_error() : std::string();
  for (int k = 1; k < n && with_headers; ++k) headers.recv(&theirs[from(k)], sizeof(Header), members_.ranks[from(k)]);
  for (int k = 1; k < n && with_headers; ++k) {
    mine[to(k)] = Header(call_, members_.id, gives(to(k)), expects(to(k)));
    mine[to(k)].note_error(error);
    headers.send(&mine[to(k)], sizeof(Header), members_.ranks[to(k)]);
  }
  for (int k = 1; k < n; ++k) {
    for (const Part& part : parts[to(k)]) data.send(part.give, part.give_bytes, members_.ranks[to(k)]);
  }
  const auto where = [&] { return place(); };
  headers.wait(where, Exchange::For::arrival);
  if (with_headers) compare(mine, theirs);
  for (int k = 1; k < n; ++k) {
    for (const Part& part : parts[from(k)]) data.recv(part.take, part.take_bytes, members_.ranks[from(k)]);
  }
  data.wait(where);
}

}  // namespace dtensor::pairwise
