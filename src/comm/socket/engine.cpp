#include "comm/socket/engine.h"

#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "dtensor/comm.h"

namespace dtensor::sockets {
namespace {

using pairwise::Channel;
using pairwise::Word;

constexpr std::uint64_t kShort = 16384;
constexpr std::chrono::milliseconds kLastWords{500};

template <class Key, class T>
std::optional<T> take_first(std::map<Key, std::deque<T>>& map, const Key& key) {
  const auto found = map.find(key);
  if (found == map.end()) return std::nullopt;
  T first = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) map.erase(found);
  return first;
}

}  // namespace

Engine::Engine(int rank, std::vector<Met> met) : rank_(rank), poll_(epoll_create1(EPOLL_CLOEXEC)) {
  for (auto& m : met) links_.emplace_back(std::move(m));
  for (std::size_t r = 0; r < links_.size(); ++r) {
    epoll_event event{EPOLLIN, {}};
    event.data.u32 = static_cast<std::uint32_t>(r);
    if (links_[r].fd() >= 0) epoll_ctl(poll_, EPOLL_CTL_ADD, links_[r].fd(), &event);
  }
  writing_.resize(links_.size());
}

Engine::~Engine() { close(poll_); }

void Engine::send(const MessagePtr& message, Channel channel, int tag, bool now) {
  const std::lock_guard lock(mutex_);
  Frame frame;
  frame.channel = static_cast<std::uint8_t>(channel);
  frame.tag = tag;
  frame.size = message->size;
  if (message->peer == rank_) return send_to_self(message, frame);
  Link& link = links_[message->peer];
  if (!link.lost().empty()) return;  // never through: whoever waits for it hears why
  if (message->size <= kShort) {
    link.put(frame, std::string(message->data, message->size));
    message->finish();
  } else {
    frame.kind = Frame::offer;
    frame.id = ++ids_;
    frame.address = reinterpret_cast<std::uint64_t>(message->data);
    link.put(frame);
    offered_[frame.id] = message;
  }
  if (now) flush(message->peer);
}

void Engine::recv(const MessagePtr& message, Channel channel, int tag) {
  const std::lock_guard lock(mutex_);
  const Key key{message->peer, channel, tag};
  if (auto arrived = take_first(arrived_, key)) {
    take(*arrived, message);
  } else {
    asked_[key].push_back(message);
  }
}

void Engine::tell(int peer, const Frame& frame, const std::string& text) {
  const std::lock_guard lock(mutex_);
  links_[peer].put(frame, text);
  flush(peer);
}

std::optional<Word> Engine::hear() {
  progress();
  const std::lock_guard lock(mutex_);
  if (words_.empty()) return std::nullopt;
  Word first = std::move(words_.front());
  words_.pop_front();
  return first;
}

std::string Engine::lost(int peer) {
  const std::lock_guard lock(mutex_);
  const bool last_words = std::any_of(words_.begin(), words_.end(), [&](const Word& w) { return w.from == peer; });
  return last_words ? "" : links_[peer].lost();
}

void Engine::progress() {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < size(); ++peer) flush(peer);
  epoll_event events[64];
  const int ready = epoll_wait(poll_, events, 64, 0);
  for (int i = 0; i < ready; ++i) {
    const auto peer = static_cast<int>(events[i].data.u32);
    links_[peer].drain([&](const Frame& frame) { return land(peer, frame); });
    flush(peer);
  }
}

bool Engine::waiting_to_write() {
  const std::lock_guard lock(mutex_);
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.waiting_to_write(); });
}

void Engine::settle() {
  const auto deadline = std::chrono::steady_clock::now() + kLastWords;
  while (waiting_to_write() && std::chrono::steady_clock::now() < deadline) {
    progress();
    usleep(1000);
  }
}

void Engine::flush(int peer) {
  Link& link = links_[peer];
  link.flush();
  if (link.waiting_to_write() == writing_[peer] || link.fd() < 0) return;
  writing_[peer] = link.waiting_to_write();
  epoll_event event{writing_[peer] ? EPOLLIN | EPOLLOUT : EPOLLIN, {}};
  event.data.u32 = static_cast<std::uint32_t>(peer);
  epoll_ctl(poll_, EPOLL_CTL_MOD, link.fd(), &event);
}

void Engine::send_to_self(const MessagePtr& message, const Frame& frame) {
  const Key key{rank_, static_cast<Channel>(frame.channel), frame.tag};
  const Arrived copy{frame, std::make_shared<std::string>(message->data, message->size)};
  if (auto asked = take_first(asked_, key)) {
    take(copy, *asked);
  } else {
    arrived_[key].push_back(copy);
  }
  message->finish();
}

std::string Engine::misfit(const Frame& frame, const Message& message) {
  return "a message of " + std::to_string(frame.size) + " bytes from rank " + std::to_string(message.peer) +
         " met a buffer of " + std::to_string(message.size);
}

void Engine::take(const Arrived& arrived, const MessagePtr& message) {
  const bool fits = arrived.frame.size == message->size;
  if (arrived.frame.kind == Frame::offer)
    return fits ? pull(arrived.frame, message) : message->finish(misfit(arrived.frame, *message));
  if (fits && message->size > 0) std::memcpy(message->data, arrived.bytes->data(), message->size);
  message->finish(fits ? "" : misfit(arrived.frame, *message));
}

void Engine::pull(const Frame& offer, const MessagePtr& message) {
  Link& link = links_[message->peer];
  Frame answer;
  answer.id = offer.id;
  if (link.readable() != 0 && read_memory(link.readable(), offer, *message)) {
    answer.kind = Frame::taken;
    message->finish();
  } else {
    answer.kind = Frame::accept;
    answer.address = ++ids_;
    accepted_[answer.address] = message;
  }
  link.put(answer);
  flush(message->peer);
}

bool Engine::read_memory(pid_t process, const Frame& offer, const Message& message) {
  for (std::uint64_t at = 0; at < offer.size;) {
    const iovec mine{message.data + at, offer.size - at};
    const iovec theirs{reinterpret_cast<void*>(offer.address + at), offer.size - at};
    const ssize_t n = process_vm_readv(process, &mine, 1, &theirs, 1, 0);
    if (n <= 0) return false;
    at += static_cast<std::uint64_t>(n);
  }
  return true;
}

Landing Engine::land(int peer, const Frame& frame) {
  switch (frame.kind) {
    case Frame::whole:
      return land_whole(peer, frame);
    case Frame::word: {
      auto text = std::make_shared<std::string>(frame.size, '\0');
      return {text->data(), [this, peer, text, tag = frame.tag] { words_.push_back({peer, tag, *text}); }};
    }
    case Frame::offer: {
      const Key key{peer, static_cast<Channel>(frame.channel), frame.tag};
      if (auto asked = take_first(asked_, key)) {
        take({frame, nullptr}, *asked);
      } else {
        arrived_[key].push_back({frame, nullptr});
      }
      return {};
    }
    case Frame::accept: {
      const MessagePtr message = found(offered_, frame.id);
      Frame bytes;
      bytes.kind = Frame::bytes;
      bytes.size = message->size;
      bytes.id = frame.address;
      links_[peer].put(bytes, message->data, message->size, [message] { message->finish(); });
      return {};
    }
    case Frame::taken:
      found(offered_, frame.id)->finish();
      return {};
    case Frame::bytes: {
      const MessagePtr message = found(accepted_, frame.id);
      return {message->data, [message] { message->finish(); }};
    }
  }
  throw CommError("rank " + std::to_string(rank_) + " read what is no message from rank " + std::to_string(peer));
}

Landing Engine::land_whole(int peer, const Frame& frame) {
  const Key key{peer, static_cast<Channel>(frame.channel), frame.tag};
  const auto asked = asked_.find(key);
  if (asked != asked_.end() && asked->second.front()->size == frame.size) {
    const MessagePtr message = *take_first(asked_, key);
    return {message->data, [message] { message->finish(); }};
  }
  auto bytes = std::make_shared<std::string>(frame.size, '\0');
  return {bytes->data(), [this, key, frame, bytes] {
            if (auto message = take_first(asked_, key)) return take({frame, bytes}, *message);
            arrived_[key].push_back({frame, bytes});
          }};
}

MessagePtr Engine::found(std::map<std::uint64_t, MessagePtr>& map, std::uint64_t id) {
  const auto at = map.find(id);
  if (at == map.end()) throw CommError("rank " + std::to_string(rank_) + " read an answer to nothing");
  MessagePtr message = std::move(at->second);
  map.erase(at);
  return message;
}

}  // namespace dtensor::sockets
