// Decides whether a message is sent eagerly, by rendezvous over the stream, or read from the memory of its sender.
#include "comm/socket/progress_engine.h"

#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace dtensor::sockets {
namespace {

using p2p::Channel;
using p2p::ControlMessage;

constexpr std::chrono::milliseconds kFinalMessages{500};

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

Engine::Engine(int rank, std::vector<Peer> peers) : rank_(rank), poll_(epoll_create1(EPOLL_CLOEXEC)) {
  for (auto& m : peers) links_.emplace_back(std::move(m));
  for (std::size_t r = 0; r < links_.size(); ++r) {
    epoll_event event{EPOLLIN, {}};
    event.data.u32 = static_cast<std::uint32_t>(r);
    if (links_[r].fd() >= 0) epoll_ctl(poll_, EPOLL_CTL_ADD, links_[r].fd(), &event);
  }
  awaited_.resize(links_.size(), EPOLLIN);
}

Engine::~Engine() { close(poll_); }

void Engine::send(const MessagePtr& message, Channel channel, int tag, bool now) {
  const std::lock_guard lock(mutex_);
  Frame frame;
  frame.channel = static_cast<std::uint8_t>(channel);
  frame.tag = tag;
  frame.size = message->size;
  if (message->peer == rank_) return send_to_self(message, frame);
  Connection& link = links_[message->peer];
  if (!link.disconnect_reason().empty()) return;  // never completes; the waiting call reports the reason
  if (message->size <= kShort) {
    link.put(frame, std::string(message->data, message->size));
    message->finish();
  } else {
    frame.kind = Frame::request_to_send;
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
  if (auto arrived = take_first(unexpected_, key)) {
    take(*arrived, message);
  } else {
    posted_receives_[key].push_back(message);
  }
}

void Engine::send_control(int peer, const Frame& frame, const std::string& text) {
  const std::lock_guard lock(mutex_);
  links_[peer].put(frame, text);
  flush(peer);
}

std::optional<ControlMessage> Engine::poll_control() {
  progress();
  const std::lock_guard lock(mutex_);
  if (control_messages_.empty()) return std::nullopt;
  ControlMessage first = std::move(control_messages_.front());
  control_messages_.pop_front();
  return first;
}

std::string Engine::disconnect_reason(int peer) {
  const std::lock_guard lock(mutex_);
  const bool has_final_message = std::any_of(control_messages_.begin(), control_messages_.end(),
                                             [&](const ControlMessage& w) { return w.from == peer; });
  return has_final_message ? "" : links_[peer].disconnect_reason();
}

void Engine::progress() {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < size(); ++peer) flush(peer);
  epoll_event events[64];
  const int ready = epoll_wait(poll_, events, 64, 0);
  for (int i = 0; i < ready; ++i) {
    const auto peer = static_cast<int>(events[i].data.u32);
    links_[peer].drain([&](const Frame& frame) { return receive_target(peer, frame); });
    flush(peer);
  }
}

bool Engine::has_pending_output() {
  const std::lock_guard lock(mutex_);
  return std::any_of(links_.begin(), links_.end(), [](const Connection& link) { return link.has_pending_output(); });
}

void Engine::settle() {
  const auto deadline = std::chrono::steady_clock::now() + kFinalMessages;
  while (has_pending_output() && std::chrono::steady_clock::now() < deadline) {
    progress();
    usleep(1000);
  }
}

void Engine::flush(int peer) {
  Connection& link = links_[peer];
  link.flush();
  if (link.fd() < 0) return;
  const std::uint32_t input = link.disconnect_reason().empty() ? std::uint32_t{EPOLLIN} : 0;
  const std::uint32_t awaited = input | (link.has_pending_output() ? std::uint32_t{EPOLLOUT} : 0);
  if (awaited == awaited_[peer]) return;
  awaited_[peer] = awaited;
  epoll_event event{awaited, {}};
  event.data.u32 = static_cast<std::uint32_t>(peer);
  epoll_ctl(poll_, EPOLL_CTL_MOD, link.fd(), &event);
}

void Engine::send_to_self(const MessagePtr& message, const Frame& frame) {
  const Key key{rank_, static_cast<Channel>(frame.channel), frame.tag};
  const UnexpectedMessage copy{frame, std::make_shared<std::string>(message->data, message->size)};
  if (auto posted = take_first(posted_receives_, key)) {
    take(copy, *posted);
  } else {
    unexpected_[key].push_back(copy);
  }
  message->finish();
}

std::string Engine::size_mismatch(const Frame& frame, const Message& message) const {
  const std::string& address = links_[message.peer].address();
  return "a message of " + std::to_string(frame.size) + " bytes from rank " + std::to_string(message.peer) +
         (address.empty() ? "" : " (" + address + ")") + " does not fit a buffer of " + std::to_string(message.size);
}

void Engine::take(const UnexpectedMessage& arrived, const MessagePtr& message) {
  const bool fits = arrived.frame.size == message->size;
  if (arrived.frame.kind == Frame::request_to_send)
    return fits ? read_from_sender(arrived.frame, message) : message->finish(size_mismatch(arrived.frame, *message));
  if (fits && message->size > 0) std::memcpy(message->data, arrived.bytes->data(), message->size);
  message->finish(fits ? "" : size_mismatch(arrived.frame, *message));
}

void Engine::read_from_sender(const Frame& offer, const MessagePtr& message) {
  Connection& link = links_[message->peer];
  Frame answer;
  answer.id = offer.id;
  if (link.readable() != 0 && read_memory(link.readable(), offer, *message)) {
    answer.kind = Frame::acknowledge;
    message->finish();
  } else {
    answer.kind = Frame::clear_to_send;
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

ReceiveTarget Engine::receive_target(int peer, const Frame& frame) {
  switch (frame.kind) {
    case Frame::eager:
      return eager_target(peer, frame);
    case Frame::control: {
      auto text = std::make_shared<std::string>(frame.size, '\0');
      return {text->data(), [this, peer, text, tag = frame.tag] { control_messages_.push_back({peer, tag, *text}); }};
    }
    case Frame::request_to_send: {
      const Key key{peer, static_cast<Channel>(frame.channel), frame.tag};
      if (auto posted = take_first(posted_receives_, key)) {
        take({frame, nullptr}, *posted);
      } else {
        unexpected_[key].push_back({frame, nullptr});
      }
      return {};
    }
    case Frame::clear_to_send: {
      const MessagePtr message = take_by_id(offered_, peer, frame.id);
      if (message == nullptr) return {};
      Frame bytes;
      bytes.kind = Frame::data;
      bytes.size = message->size;
      bytes.id = frame.address;
      links_[peer].put(bytes, message->data, message->size, [message] { message->finish(); });
      return {};
    }
    case Frame::acknowledge:
      if (const MessagePtr message = take_by_id(offered_, peer, frame.id)) message->finish();
      return {};
    case Frame::data:
      return data_target(peer, frame);
  }
  return {};  // frame_error() knows all kinds
}

ReceiveTarget Engine::data_target(int peer, const Frame& frame) {
  const MessagePtr message = take_by_id(accepted_, peer, frame.id);
  if (message == nullptr) return {};
  if (frame.size == message->size) return {message->data, [message] { message->finish(); }};
  links_[peer].reject("data of " + std::to_string(frame.size) + " bytes for a message of " +
                      std::to_string(message->size));
  return {};
}

ReceiveTarget Engine::eager_target(int peer, const Frame& frame) {
  const Key key{peer, static_cast<Channel>(frame.channel), frame.tag};
  const auto posted = posted_receives_.find(key);
  if (posted != posted_receives_.end() && posted->second.front()->size == frame.size) {
    const MessagePtr message = *take_first(posted_receives_, key);
    return {message->data, [message] { message->finish(); }};
  }
  auto bytes = std::make_shared<std::string>(frame.size, '\0');
  return {bytes->data(), [this, key, frame, bytes] {
            if (auto message = take_first(posted_receives_, key)) return take({frame, bytes}, *message);
            unexpected_[key].push_back({frame, bytes});
          }};
}

MessagePtr Engine::take_by_id(std::map<std::uint64_t, MessagePtr>& map, int peer, std::uint64_t id) {
  const auto at = map.find(id);
  if (at == map.end() || at->second->peer != peer) {
    links_[peer].reject("an answer to message " + std::to_string(id) + ", which is not in progress");
    return nullptr;
  }
  MessagePtr message = std::move(at->second);
  map.erase(at);
  return message;
}

}  // namespace dtensor::sockets
