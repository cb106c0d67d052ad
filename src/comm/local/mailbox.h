// Point-to-point messages between thread ranks. The second rank to arrive makes the copy.
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
  bool lost = false;      // set before done: the two sides did not match, or could not be copied
  bool reported = false;  // wait() has thrown
};

class Mailbox {
 public:
  // Posts one side of a message; copies at once if the other side is already posted.
  std::shared_ptr<Message> post(Group& group, int me, const CollectiveCall& call, const at::Tensor& tensor);
  // Blocks until the message is complete. Throws CommError.
  void wait(Group& group, Message& message);
  // Whether wait() would return or throw without blocking; a failure counts, since a polling caller would never
  // finish.
  bool is_complete(Group& group, const Message& message) const;
  // Called by the destructor of a Work: waits, and on failure withdraws the message, so that its tensor is not
  // accessed any more. A failure that was not reported is noted.
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
