#include <array>
#include <map>
#include <set>
#include <vector>

#include "comm/socket/rendezvous/admission/peer_acceptor.h"
#include "comm/socket/rendezvous/join.h"
#include "dtensor/comm.h"
#include "fuzz/sockets/input.h"
#include "fuzz/sockets/targets.h"

namespace dtensor::fuzz {
namespace {

using namespace sockets;
using std::chrono::milliseconds;

constexpr std::uint64_t kJob = 7;

RendezvousOptions draw_options(Input& in, int rank) {
  RendezvousOptions options{"127.0.0.1", 1, rank, 2 + in.below(3), kJob, milliseconds(1000), ""};
  if (in.flag()) options.secret = "a secret";
  return options;
}

// Connections to rank 0 that tell the truth or not, and what follows from what they said.
class Strangers {
 public:
  explicit Strangers(const RendezvousOptions& options)
      : options_(options), table_(options), acceptor_(options, &table_) {
    Member mine;
    mine.port = 1;
    table_.set_rank_0(mine);
  }

  void step(Input& in) {
    Stranger& s = strangers_[static_cast<std::size_t>(in.below(kStrangers))];
    const int what = in.below(8);
    if (what == 0) open(s);
    if (what == 1) s = Stranger();
    if (what == 2) say(s, in.bytes(static_cast<std::size_t>(in.below(256))));
    if (what == 3 || what == 4) join(s, in);
    if (what == 5) answer(s, in);
    if (what == 6) greet(s, in);
    if (what == 7 && !table_.complete()) admit(static_cast<std::uint32_t>(table_.missing().front()));
    acceptor_.poll(milliseconds(0));
    if (table_.complete() && !announced_) announced_ = true, acceptor_.set_members(table_.members());
    check();
  }

 private:
  struct Stranger {
    Stream stream;
    Join join;
  };
  static constexpr int kStrangers = 6;

  void open(Stranger& s) {
    auto [mine, theirs] = connection();
    mine.make_nonblocking();
    acceptor_.add(std::move(mine), true);
    s.stream = std::move(theirs);
  }
  static void say(const Stranger& s, std::string_view bytes) { write_some(s.stream, bytes); }

  void join(Stranger& s, Input& in) {
    s.join = Join();
    if (in.below(8) == 0) s.join.magic = in.number<std::uint64_t>();
    s.join.job = in.below(8) == 0 ? kJob + 1 : kJob;
    s.join.size = static_cast<std::uint32_t>(in.below(8) == 0 ? in.number<std::uint32_t>() : options_.size);
    s.join.rank = in.below(8) == 0 ? in.number<std::uint32_t>() : static_cast<std::uint32_t>(in.below(6));
    s.join.has_secret = options_.secret.empty() ? in.below(8) == 0 : in.below(8) != 0;
    say(s, bytes_of(s.join));
  }

  // A rank that does what is expected.
  void admit(std::uint32_t rank) {
    Stranger s;
    open(s);
    s.join.job = kJob, s.join.size = static_cast<std::uint32_t>(options_.size), s.join.rank = rank;
    s.join.has_secret = options_.secret.empty() ? 0 : 1;
    say(s, bytes_of(s.join));
    acceptor_.poll(milliseconds(0));
    Answer answer;
    answer.member.port = 5000;
    std::string challenge = read_some(s.stream);
    challenge.resize(sizeof(Reply));
    answer.proof = join_proof(options_.secret, kJoiningRole, s.join, read_as<Reply>(challenge).digest, answer.member);
    proved_.insert(static_cast<int>(rank));
    say(s, bytes_of(answer));
    honest_.push_back(std::move(s.stream));
  }

  // With a proof only after the challenge was read.
  void answer(Stranger& s, Input& in) {
    Answer answer;
    answer.member.port = in.below(8) == 0 ? in.number<std::uint32_t>() : 5000;
    in.bytes(16).copy(answer.member.host, sizeof answer.member.host);
    const std::string replies = read_some(s.stream);
    const bool honest = in.flag() && replies.size() == sizeof(Reply);
    if (honest)
      answer.proof = join_proof(options_.secret, kJoiningRole, s.join, read_as<Reply>(replies).digest, answer.member);
    if (honest && s.join.rank < 8) proved_.insert(static_cast<int>(s.join.rank));
    say(s, bytes_of(answer));
  }

  void greet(Stranger& s, Input& in) {
    const int from = in.below(6);
    Hello hello;
    hello.from = static_cast<std::uint32_t>(from);
    hello.to = in.below(8) == 0 ? 1 : 0;
    const bool honest = in.flag() && announced_ && from < options_.size;
    if (honest) hello.token = table_.members()[static_cast<std::size_t>(from)].token, presented_.insert(from);
    hello.pid = in.below(4) == 0 ? in.number<std::int64_t>() : 0;
    hello.cookie_address = in.number<std::uint64_t>();
    say(s, bytes_of(hello));
  }

  void check() {
    const auto& members = table_.members();
    for (int r = 1; r < options_.size; ++r) {
      const bool in_table = members[static_cast<std::size_t>(r)].port != 0;
      require(options_.secret.empty() || !in_table || proved_.count(r) == 1, "who is admitted knows the secret");
      const bool is_peer = acceptor_.peers()[static_cast<std::size_t>(r)].stream.open();
      require(!is_peer || presented_.count(r) == 1, "a peer has presented its token");
    }
    require(!acceptor_.peers()[0].stream.open(), "rank 0 has no connection to itself");
  }

  const RendezvousOptions options_;
  JobTable table_;
  PeerAcceptor acceptor_;
  std::array<Stranger, kStrangers> strangers_;
  std::vector<Stream> honest_;
  std::set<int> proved_, presented_;
  bool announced_ = false;
};

// The replies of a server, which may be right.
std::string draw_replies(Input& in, int size) {
  std::string all;
  for (int kind = 0; kind < 6 && !in.empty(); ++kind) {
    Reply header;
    header.kind = in.below(4) == 0
                      ? in.number<std::uint32_t>()
                      : static_cast<std::uint32_t>(std::array{0, 1, 3, 5, 3, 5}[static_cast<std::size_t>(kind)]);
    const bool table = header.kind == Reply::table && in.below(4) != 0;
    header.bytes = table              ? static_cast<std::uint32_t>(size * static_cast<int>(sizeof(Member)))
                   : in.below(4) == 0 ? in.number<std::uint32_t>()
                                      : static_cast<std::uint32_t>(in.below(40));
    if (in.below(16) == 0) header.magic = in.number<std::uint64_t>();
    all += bytes_of(header);
    std::string text = in.bytes(std::min<std::uint32_t>(header.bytes, 64));
    text.resize(std::min<std::uint32_t>(header.bytes, 1024), 'y');
    all += text;
  }
  return all + in.rest();
}

}  // namespace

void fuzz_admission(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  Strangers strangers(draw_options(in, 0));
  for (int step = 0; step < 200 && !in.empty(); ++step) strangers.step(in);
}

void fuzz_join(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const RendezvousOptions options = draw_options(in, 1);
  auto [mine, server] = connection();
  write_some(server, draw_replies(in, options.size));
  shutdown(server.fd(), SHUT_WR);
  try {
    const auto members = join_over(mine, 5000, options, milliseconds(1000), milliseconds(1000),
                                   [](const std::string&) { return Member(); });
    require(members.empty() || static_cast<int>(members.size()) == options.size, "there is one member for each rank");
    require(members.empty() || options.secret.empty(), "a server without the secret is not believed");
    Hello hello;
    if (!members.empty()) hello.from = 2, (void)check_hello(hello, -1, 1, members), (void)text_of(members.back().host);
  } catch (const CommError&) {
  }
}

}  // namespace dtensor::fuzz
