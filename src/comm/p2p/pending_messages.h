// A batch of messages in progress.
#pragma once

#include <c10/util/FunctionRef.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/p2p/job/job.h"
#include "dtensor/comm_backend.h"

namespace dtensor::p2p {

class MessageBatch {
 public:
  MessageBatch(Job& job, Channel channel, int tag) : job_(job), batch_(job.transport().batch(channel, tag)) {}
  MessageBatch(const MessageBatch&) = delete;
  MessageBatch& operator=(const MessageBatch&) = delete;
  ~MessageBatch();  // abandons messages in progress and keeps their memory forever

  // `peer` is a world rank. The memory must live until wait() returns; call keep() for its owner.
  void send(const void* data, std::int64_t bytes, std::int64_t peer) {
    batch_->send(data, bytes, static_cast<int>(peer));
    done_ = false;
  }
  void recv(void* data, std::int64_t bytes, std::int64_t peer) {
    batch_->recv(data, bytes, static_cast<int>(peer));
    done_ = false;
  }
  void keep(const at::Tensor& tensor) { kept_.tensors.push_back(tensor); }
  void keep(std::shared_ptr<void> memory) { kept_.others.push_back(std::move(memory)); }

  bool test() { return done_ || (done_ = batch_->test()); }  // makes progress; whether all messages are complete
  // Whether wait() would throw: checks for failures and for peers that have left, for callers that only poll.
  bool would_throw(c10::function_ref<std::string()> operation);
  // The reason of a wait: peers that have not arrived, or that have not received a message. These are reported to the
  // others for deadlock detection. Data transfers are not, since they may take long.
  enum class WaitReason { peer_arrival, message_taken, data };
  // Blocks until all messages are complete. Throws CommError if a rank failed or a peer left, on a deadlock, or after
  // the timeout. `operation` describes the call for the message. `sent_tag` is the tag of the message that a peer must
  // receive.
  void wait(c10::function_ref<std::string()> operation, WaitReason what = WaitReason::data, std::int64_t sent_tag = -1);

 private:
  struct Kept {
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<void>> others;
  };
  void watch(c10::function_ref<std::string()> operation, std::chrono::steady_clock::time_point begin, WaitReason what,
             std::int64_t sent_tag);
  void check_exited_peers(c10::function_ref<std::string()> operation, std::chrono::steady_clock::time_point now,
                          bool late);
  [[noreturn]] void fail(const std::string& what, c10::function_ref<std::string()> operation);
  std::string report(c10::function_ref<std::string()> operation) const;

  Job& job_;
  std::unique_ptr<Batch> batch_;
  Kept kept_;
  bool done_ = true;
  std::chrono::steady_clock::time_point exit_noticed_at_{};
};

}  // namespace dtensor::p2p
