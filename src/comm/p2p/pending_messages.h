// A set of messages under way.
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
  ~MessageBatch();  // abandons what is under way, and keeps its memory for good

  // `peer`: a world rank. The memory must live until wait() returns; keep() what owns it.
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

  bool test() { return done_ || (done_ = batch_->test()); }  // progress; whether all is through
  // Whether wait() would throw: looks for failures and for peers that have left, for those who test and never wait.
  bool would_throw(c10::function_ref<std::string()> operation);
  // What a wait is for: peers who have not come yet, or who have yet to take a message, which others are told of, so
  // that ranks that wait for each other find out; or data, which may take as long as they do.
  enum class WaitReason { peer_arrival, message_taken, data };
  // Blocks until all is through. Throws CommError: a failure elsewhere, a peer that left, ranks that wait for each
  // other, the timeout. `operation` says in what this rank waits.
  // `sent_tag`: of the message that is to be taken.
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
