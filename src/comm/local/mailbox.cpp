// Matches sends with receives by (from, to, tag), in order.
#include "comm/local/mailbox.h"

#include <algorithm>
#include <array>
#include <thread>

#include "comm/error_messages.h"
#include "comm/local/device_memory.h"

namespace dtensor::local {
namespace {

bool is_send(const Message& m) { return m.call.kind == CollectiveKind::send; }

std::string text(const Group& group, const Message& m) {
  const auto list = at::TensorList(m.tensor);
  return group.describe_call({m.call, list, {}});
}

}  // namespace

Mailbox::Key Mailbox::key(int me, const CollectiveCall& call) {
  return call.kind == CollectiveKind::send ? Key{me, call.peer, call.tag} : Key{call.peer, me, call.tag};
}

std::shared_ptr<Message> Mailbox::match(const std::shared_ptr<Message>& mine) {
  std::lock_guard lock(mutex_);
  const Key where = key(mine->me, mine->call);
  Queue& others = (is_send(*mine) ? recvs_ : sends_)[where];
  if (others.empty()) {
    (is_send(*mine) ? sends_ : recvs_)[where].push_back(mine);
    return nullptr;
  }
  auto other = others.front();
  others.pop_front();
  other->state.store(Message::State::copying);
  return other;
}

// Returns false if the delivery failed; then the world has failed.
bool Mailbox::deliver(Group& group, const Message& mine, const Message& other) {
  const Message& from = is_send(mine) ? mine : other;
  const Message& to = is_send(mine) ? other : mine;
  if (from.call.dtype != to.call.dtype || from.tensor.sizes() != to.tensor.sizes()) {
    const std::array both{group.ranks()[from.me], group.ranks()[to.me]};
    group.world().fail(group.world().failed_before(both) + "ranks disagree: rank " + std::to_string(both[0]) +
                       " called " + text(group, from) + "; rank " + std::to_string(both[1]) + " called " +
                       text(group, to) + group.world().recent(both));
    return false;
  }
  try {
    copy_across_devices(to.tensor, from.tensor);
    synchronize_streams({to.tensor, from.tensor});
    return true;
  } catch (...) {
    group.world().fail("rank " + std::to_string(group.ranks()[mine.me]) + " failed in " + text(group, mine) + ": " +
                       current_exception_text());
    return false;
  }
}

std::shared_ptr<Message> Mailbox::post(Group& group, int me, const CollectiveCall& call, const at::Tensor& tensor) {
  if (group.world().failed()) group.world().throw_failure();
  auto mine = std::make_shared<Message>();
  mine->call = call;
  mine->tensor = tensor;
  mine->me = me;
  if (auto other = match(mine)) {
    mine->lost = other->lost = !deliver(group, *mine, *other);
    other->state.store(Message::State::done);
    mine->state.store(Message::State::done);
    group.waits().wake();
  }
  return mine;
}

void Mailbox::wait(Group& group, Message& message) {
  const auto operation = [&] { return text(group, message); };
  // A matched message waits for no rank, even if the waiting thread has not seen it yet.
  const auto peer = [&] {
    const bool alone = message.state.load() == Message::State::posted;
    return alone ? std::vector<std::int64_t>{group.ranks()[message.call.peer]} : std::vector<std::int64_t>();
  };
  try {
    group.waits().wait({group.ranks()[message.me], operation, peer},
                       [&] { return message.state.load() == Message::State::done; });
    if (group.world().failed()) group.world().throw_failure();
  } catch (...) {
    message.reported = true;
    throw;
  }
}

bool Mailbox::is_complete(Group& group, const Message& message) const {
  if (message.state.load() == Message::State::done || group.world().failed()) return true;
  return group.world().left(group.ranks()[message.call.peer]);  // it made its part of the message before, or never will
}

// A failure that no call has reported is noted. The next call on any communicator throws it, or else the end of the
// rank.
void Mailbox::finish(Group& group, Message& message) noexcept {
  const bool reported = message.reported, known = group.world().failed();
  bool missed = false;
  try {
    if (message.state.load() != Message::State::done) wait(group, message);
  } catch (...) {
    missed = !known;
    std::lock_guard lock(mutex_);
    auto& queue = (is_send(message) ? sends_ : recvs_)[key(message.me, message.call)];
    std::erase_if(queue, [&](const auto& m) { return m.get() == &message; });
    if (message.state.load() == Message::State::posted) message.state.store(Message::State::done);
  }
  while (message.state.load() != Message::State::done) std::this_thread::yield();
  if ((missed || message.lost) && !reported) group.world().record(group.ranks()[message.me])->mark_unreported_failure();
}

}  // namespace dtensor::local
