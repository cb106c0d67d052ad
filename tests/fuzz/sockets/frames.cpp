#include <memory>
#include <vector>

#include "comm/p2p/call_header.h"
#include "comm/p2p/job/job.h"
#include "comm/socket/frame.h"
#include "comm/socket/transport.h"
#include "fuzz/sockets/input.h"
#include "fuzz/sockets/targets.h"

namespace dtensor::fuzz {
namespace {

using p2p::Channel;
using sockets::Frame;

constexpr int kSizes[] = {1, 100, 16384, 16385, 70000};
constexpr std::size_t kGuard = 256;
constexpr char kFill = 0x5a;

// A message of this rank, in memory with guard regions.
class GuardedMessage {
 public:
  GuardedMessage(p2p::Transport& transport, Channel channel, int tag, int bytes, bool receives)
      : memory_(static_cast<std::size_t>(bytes) + 2 * kGuard, kFill),
        bytes_(static_cast<std::size_t>(bytes)),
        batch_(transport.batch(channel, tag)) {
    char* data = memory_.data() + kGuard;
    receives ? batch_->recv(data, bytes, 1) : batch_->send(data, bytes, 1);
  }
  void check() {
    try {
      batch_->test();
    } catch (const CommError&) {  // for a message of another size
    }
    const auto filled = [](const char* at) { return std::all_of(at, at + kGuard, [](char c) { return c == kFill; }); };
    require(filled(memory_.data()) && filled(memory_.data() + kGuard + bytes_), "only the buffer is written");
  }

 private:
  std::vector<char> memory_;
  std::size_t bytes_;
  std::unique_ptr<p2p::Batch> batch_;
};

Frame draw_frame(Input& in) {
  Frame frame;
  const int kind = in.below(16);
  frame.kind = static_cast<Frame::Kind>(kind < 6 ? kind : in.number<std::uint8_t>());
  frame.channel = static_cast<std::uint8_t>(in.below(6));
  frame.tag = in.below(8);
  const int size = in.below(8);
  frame.size = size < 5 ? static_cast<std::uint64_t>(kSizes[size]) : size == 5 ? 0 : in.number<std::uint64_t>();
  frame.id = static_cast<std::uint64_t>(in.below(6));
  frame.address = in.flag() ? static_cast<std::uint64_t>(in.below(6)) : in.number<std::uint64_t>();
  return frame;
}

void send_frame(const sockets::Stream& stranger, Input& in) {
  const Frame frame = draw_frame(in);
  write_some(stranger, {reinterpret_cast<const char*>(&frame), sizeof frame});
  if (!frame.has_bytes()) return;
  const std::string own = in.bytes(static_cast<std::size_t>(in.below(64)));
  const std::string bytes = own + std::string(std::min<std::uint64_t>(frame.size, 80000), 'x');
  write_some(stranger, std::string_view(bytes).substr(0, std::min<std::size_t>(frame.size, bytes.size())));
}

// A received header is compared and shown.
void show_header(Input& in) {
  p2p::CallHeader header;
  const std::string bytes = in.bytes(sizeof header);
  std::memcpy(static_cast<void*>(&header), bytes.data(), bytes.size());
  (void)p2p::fits(p2p::CallHeader(), header);
  require(!header.str().empty(), "a header has a text");
  require(header.error_text().size() <= sizeof header.error, "a text of a header ends in it");
}

}  // namespace

void fuzz_frames(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  auto [mine, stranger] = connection();
  mine.make_nonblocking();
  std::vector<sockets::Peer> peers(2);
  peers[1] = {std::move(mine), true, in.flag() ? getpid() : 0, "a fuzzer"};
  p2p::Job job(sockets::make_transport(0, std::move(peers)), {.timeout = std::chrono::seconds(20)});
  std::vector<std::unique_ptr<GuardedMessage>> messages;
  for (int step = 0; step < 200 && !in.empty(); ++step) {
    const int what = in.below(8);
    if (what < 2) {
      const auto channel = static_cast<Channel>(in.below(4));
      const int tag = in.below(8), bytes = kSizes[in.below(5)];
      messages.push_back(std::make_unique<GuardedMessage>(job.transport(), channel, tag, bytes, what == 0));
    }
    if (what == 2) write_some(stranger, in.bytes(static_cast<std::size_t>(in.below(256))));
    if (what >= 3 && what < 6) send_frame(stranger, in);
    if (what == 6) job.post_wait("a collective", {1}, in.below(8)), (void)job.describe_wait(1);
    if (what == 7) show_header(in);
    job.poll();
    for (const auto& message : messages) message->check();
    (void)read_some(stranger);
  }
  stranger.reset();
  messages.clear();
  job.close();
}

}  // namespace dtensor::fuzz
