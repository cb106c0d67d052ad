// A message is a header and its data, sent at once. The receiver takes the data when the header has come and was right:
// a message that meets a buffer of another size would write past its end.
#include "comm/pairwise/message.h"

#include <atomic>
#include <thread>

#include "comm/describe.h"
#include "comm/memory/buffer_pool.h"
#include "comm/memory/copy.h"

namespace dtensor::pairwise {
namespace {

int message_tag(const Members& members, int tag) {
  const auto groups = static_cast<std::uint64_t>(members.job.largest_tag()) / kMessageTags;
  return static_cast<int>(members.id % std::max<std::uint64_t>(groups, 1)) * kMessageTags + tag;
}

class MessageWork : public Work::Impl {
 public:
  MessageWork(std::shared_ptr<Members> members, const CollectiveCall& call, const at::Tensor& tensor)
      : members_(std::move(members)), call_(call), tensor_(tensor) {
    if (job().failed()) job().throw_failure(place());
    const bool direct = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
    flat_ = direct ? tensor : pooled_empty(tensor.sizes(), tensor.scalar_type());
    const bool sends = call.kind == CollectiveKind::send;
    headers_->mine = Header(call, members_->id, sends ? Sizes(tensor) : Sizes(), sends ? Sizes() : Sizes(tensor));
  }

 protected:
  struct Headers {
    Header mine, theirs;
  };

  Job& job() const { return members_->job; }
  bool checked() const { return job().options().check_calls; }
  std::int64_t me() const { return members_->ranks[members_->me]; }
  std::int64_t peer() const { return members_->ranks[call_.peer]; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }
  std::string place() const {
    const at::Tensor list[] = {tensor_};
    return members_->describe(call_, list, {});
  }

  std::unique_ptr<Exchange> start(Channel channel, int tag) {
    auto exchange = std::make_unique<Exchange>(job(), channel, tag);
    exchange->keep(flat_);
    exchange->keep(headers_);
    return exchange;
  }

  std::shared_ptr<Members> members_;
  CollectiveCall call_;
  at::Tensor tensor_, flat_;
  std::shared_ptr<Headers> headers_ = std::make_shared<Headers>();  // outlives an abandoned exchange
};

class SendWork final : public MessageWork {
 public:
  SendWork(std::shared_ptr<Members> members, const CollectiveCall& call, const at::Tensor& tensor)
      : MessageWork(std::move(members), call, tensor) {
    if (!flat_.is_same(tensor_)) copy_tensor(flat_, tensor_);
    headers_->mine.payload_tag = job().next_payload_tag();
    const int tag = message_tag(*members_, call.tag);
    if (checked()) {
      header_ = start(Channel::messages, tag);
      header_->send(&headers_->mine, sizeof(Header), peer());
    }
    data_ = checked() ? start(Channel::payloads, static_cast<int>(headers_->mine.payload_tag))
                      : start(Channel::messages, tag);
    data_->send(flat_.const_data_ptr(), bytes(), peer());
  }

  // Errors come again with the next call; what is still in use is kept by the exchanges.
  ~SendWork() override {
    try {
      wait();
    } catch (...) {
    }
  }

  void wait() override {
    const auto where = [&] { return place(); };
    if (header_) header_->wait(where);
    data_->wait(where, Exchange::For::taking, message_tag(*members_, call_.tag));
  }

  bool done() override {
    return ((!header_ || header_->test()) && data_->test()) || data_->is_hopeless([&] { return place(); });
  }

 private:
  std::unique_ptr<Exchange> header_, data_;
};

// Held by whoever looks at a receive: its own rank's waits of other messages do too.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken) : taken_(taken), mine_(!taken.exchange(true)) {}
  ~Turn() {
    if (mine_) taken_ = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& taken_;
  const bool mine_;
};

class RecvWork final : public MessageWork, public PendingReceive {
 public:
  RecvWork(std::shared_ptr<Members> members, const CollectiveCall& call, const at::Tensor& tensor)
      : MessageWork(std::move(members), call, tensor) {
    const int tag = message_tag(*members_, call.tag);
    if (checked()) {
      header_ = start(Channel::messages, tag);
      header_->recv(&headers_->theirs, sizeof(Header), peer());
    } else {
      take(Channel::messages, tag);
    }
  }

  ~RecvWork() override {
    try {
      wait();
    } catch (...) {
    }
  }

  void wait() override {
    for (;; std::this_thread::yield()) {
      const Turn turn(taken_);
      if (turn.mine()) return wait_in_turn();
    }
  }

  bool done() override {
    const Turn turn(taken_);
    if (!turn.mine()) return false;
    if (finished_) return true;
    try {
      if (!data_ && header_->test()) announced();
      if (data_ && data_->test()) finish();
    } catch (const CommError&) {  // which wait() throws
      return true;
    }
    return finished_ || (data_ ? data_ : header_)->is_hopeless([&] { return place(); });
  }

  // The peer's send may wait for this, while this rank waits for another message.
  void progress() override {
    const Turn turn(taken_);
    if (turn.mine() && !data_ && header_->test()) announced();
  }
  bool is_finished() const override { return finished_; }
  MessageKey key() const override { return {peer(), message_tag(*members_, call_.tag)}; }

 private:
  void wait_in_turn() {
    const auto where = [&] { return place(); };
    if (finished_) return;
    if (!data_) {
      header_->wait(where, Exchange::For::arrival);
      announced();
    }
    data_->wait(where);
    finish();
  }

  void take(Channel channel, int tag) {
    data_ = start(channel, tag);
    data_->recv(flat_.data_ptr(), bytes(), peer());
  }

  void announced() {
    if (fits(headers_->mine, headers_->theirs)) {
      return take(Channel::payloads, static_cast<int>(headers_->theirs.payload_tag));
    }
    job().fail("ranks disagree: rank " + std::to_string(peer()) + " called " + headers_->theirs.str() + " to " +
               std::to_string(me()) + "; rank " + std::to_string(me()) + " called " + place());
    job().throw_failure(place());
  }

  void finish() {
    finished_ = true;
    if (!flat_.is_same(tensor_)) copy_tensor(tensor_, flat_);
  }

  std::unique_ptr<Exchange> header_, data_;
  std::atomic<bool> finished_{false};
  std::atomic<bool> taken_{false};
};

}  // namespace

Work start_message(const std::shared_ptr<Members>& members, const CollectiveCall& call, const at::Tensor& tensor) {
  if (call.kind == CollectiveKind::send) return Work(std::make_shared<SendWork>(members, call, tensor));
  auto receive = std::make_shared<RecvWork>(members, call, tensor);
  members->job.add_receive(receive);
  return Work(std::move(receive));
}

}  // namespace dtensor::pairwise
