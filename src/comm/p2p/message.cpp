// A message is a header and its data, sent at once. The receiver posts the receive of the data only after the header
// matched: a larger message would write past the end of the buffer.
#include "comm/p2p/message.h"

#include <atomic>
#include <thread>

#include "comm/error_messages.h"
#include "comm/memory/copy.h"
#include "comm/memory/pool/buffer_pool.h"

namespace dtensor::p2p {
namespace {

int message_tag(const ProcessGroup& members, int tag) {
  const auto groups = static_cast<std::uint64_t>(members.job.max_tag()) / Communicator::kMessageTags;
  return static_cast<int>(members.id % std::max<std::uint64_t>(groups, 1)) * Communicator::kMessageTags + tag;
}

class MessageWork : public Work::Impl {
 public:
  MessageWork(std::shared_ptr<ProcessGroup> members, const CollectiveCall& call, const at::Tensor& tensor)
      : group_(std::move(members)), call_(call), tensor_(tensor) {
    if (job().failed()) job().throw_failure(operation());
    const bool direct = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
    flat_ = direct ? tensor : pooled_empty(tensor.sizes(), tensor.scalar_type());
    const bool sends = call.kind == CollectiveKind::send;
    headers_->mine = CallHeader(call, group_->id, sends ? Sizes(tensor) : Sizes(), sends ? Sizes() : Sizes(tensor));
  }

 protected:
  struct Headers {
    CallHeader mine, theirs;
  };

  Job& job() const { return group_->job; }
  bool checked() const { return job().options().check_calls; }
  std::int64_t me() const { return group_->ranks[group_->me]; }
  std::int64_t peer() const { return group_->ranks[call_.peer]; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }
  std::string operation() const {
    const at::Tensor list[] = {tensor_};
    return group_->describe(call_, list, {});
  }

  std::unique_ptr<MessageBatch> start(Channel channel, int tag) {
    auto exchange = std::make_unique<MessageBatch>(job(), channel, tag);
    exchange->keep(flat_);
    exchange->keep(headers_);
    return exchange;
  }

  std::shared_ptr<ProcessGroup> group_;
  CollectiveCall call_;
  at::Tensor tensor_, flat_;
  std::shared_ptr<Headers> headers_ = std::make_shared<Headers>();  // outlives an abandoned exchange
};

class SendWork final : public MessageWork {
 public:
  SendWork(std::shared_ptr<ProcessGroup> members, const CollectiveCall& call, const at::Tensor& tensor)
      : MessageWork(std::move(members), call, tensor) {
    if (!flat_.is_same(tensor_)) copy_tensor(flat_, tensor_);
    headers_->mine.payload_tag = job().next_payload_tag();
    const int tag = message_tag(*group_, call.tag);
    if (checked()) {
      header_ = start(Channel::messages, tag);
      header_->send(&headers_->mine, sizeof(CallHeader), peer());
    }
    data_ = checked() ? start(Channel::payloads, static_cast<int>(headers_->mine.payload_tag))
                      : start(Channel::messages, tag);
    data_->send(flat_.const_data_ptr(), bytes(), peer());
  }

  // Errors are thrown again by the next call; the batches keep memory that is still in use.
  ~SendWork() override {
    try {
      wait();
    } catch (...) {
    }
  }

  void wait() override {
    const auto where = [&] { return operation(); };
    if (header_) header_->wait(where);
    data_->wait(where, MessageBatch::WaitReason::message_taken, message_tag(*group_, call_.tag));
  }

  bool done() override {
    return ((!header_ || header_->test()) && data_->test()) || data_->would_throw([&] { return operation(); });
  }

 private:
  std::unique_ptr<MessageBatch> header_, data_;
};

// A try-lock for a receive: waits for other messages of the same rank access it too.
class TryLock {
 public:
  explicit TryLock(std::atomic<bool>& taken) : taken_(taken), owned_(!taken.exchange(true)) {}
  ~TryLock() {
    if (owned_) taken_ = false;
  }
  TryLock(const TryLock&) = delete;
  TryLock& operator=(const TryLock&) = delete;
  bool owned() const { return owned_; }

 private:
  std::atomic<bool>& taken_;
  const bool owned_;
};

class RecvWork final : public MessageWork, public PendingReceive {
 public:
  RecvWork(std::shared_ptr<ProcessGroup> members, const CollectiveCall& call, const at::Tensor& tensor)
      : MessageWork(std::move(members), call, tensor) {
    const int tag = message_tag(*group_, call.tag);
    if (checked()) {
      header_ = start(Channel::messages, tag);
      header_->recv(&headers_->theirs, sizeof(CallHeader), peer());
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
      const TryLock lock(taken_);
      if (lock.owned()) return wait_locked();
    }
  }

  bool done() override {
    const TryLock lock(taken_);
    if (!lock.owned()) return false;
    if (finished_) return true;
    try {
      if (!data_ && header_->test()) receive_payload();
      if (data_ && data_->test()) finish();
    } catch (const CommError&) {  // which wait() throws
      return true;
    }
    return finished_ || (data_ ? data_ : header_)->would_throw([&] { return operation(); });
  }

  // The peer's send may wait for this receive while this rank waits for another message.
  void progress() override {
    const TryLock lock(taken_);
    if (lock.owned() && !data_ && header_->test()) receive_payload();
  }
  bool is_finished() const override { return finished_; }
  MessageKey key() const override { return {peer(), message_tag(*group_, call_.tag)}; }

 private:
  void wait_locked() {
    const auto where = [&] { return operation(); };
    if (finished_) return;
    if (!data_) {
      header_->wait(where, MessageBatch::WaitReason::peer_arrival);
      receive_payload();
    }
    data_->wait(where);
    finish();
  }

  void take(Channel channel, int tag) {
    data_ = start(channel, tag);
    data_->recv(flat_.data_ptr(), bytes(), peer());
  }

  void receive_payload() {
    if (fits(headers_->mine, headers_->theirs)) {
      return take(Channel::payloads, static_cast<int>(headers_->theirs.payload_tag));
    }
    job().fail("ranks disagree: rank " + std::to_string(peer()) + " called " + headers_->theirs.str() + " to " +
               std::to_string(me()) + "; rank " + std::to_string(me()) + " called " + operation());
    job().throw_failure(operation());
  }

  void finish() {
    finished_ = true;
    if (!flat_.is_same(tensor_)) copy_tensor(tensor_, flat_);
  }

  std::unique_ptr<MessageBatch> header_, data_;
  std::atomic<bool> finished_{false};
  std::atomic<bool> taken_{false};
};

}  // namespace

Work start_message(const std::shared_ptr<ProcessGroup>& members, const CollectiveCall& call, const at::Tensor& tensor) {
  if (call.kind == CollectiveKind::send) return Work(std::make_shared<SendWork>(members, call, tensor));
  auto receive = std::make_shared<RecvWork>(members, call, tensor);
  members->job.add_receive(receive);
  return Work(std::move(receive));
}

}  // namespace dtensor::p2p
