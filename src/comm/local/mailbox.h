// Point-to-point messages between thread ranks: whoever comes second copies.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "comm/local/group.h"

namespace dtensor::local {

struct Message {
  enum class State : int { posted, copying, done };
  CollectiveCall call;
  at::Tensor tensor;
  int me = 0;
  std::atomic<State> state{State::posted};
  bool lost = false;      // set before done: the halves did not fit, or could not be copied
  bool reported = false;  // wait() has thrown
};

class Mailbox {
 public:
  // Posts one half of a message; if the other half waits, copies at once.
  std::shared_ptr<Message> post(Group& group, int me, const CollectiveCall& call, const at::Tensor& tensor);
  // Blocks until the message is through. Throws CommError.
  void wait(Group& group, Message& message);
  // Whether wait() would not block: also where it would throw, or who polls would poll for ever.
  bool is_complete(Group& group, const Message& message) const;
  // For a Work that dies: waits, and on failure takes the message back, so that nobody touches its tensor. A failure
  // that nobody has been told of is noted.
  void finish(Group& group, Message& message) noexcept;

 private:
  using Key = std::tuple<int, int, int>;  // from, to, tag
  using Queue = std::deque<std::shared_ptr<Message>>;
  static Key key(int me, const CollectiveCall& call);
  std::shared_ptr<Message> match(const std::shared_ptr<Message>& mine);
  bool deliver(Group& group, const Message& mine, const Message& other);

  std::mutex mutex_;
  std::map<Key, Queue> sends_, recvs_;
};

}  // namespace dtensor::local
