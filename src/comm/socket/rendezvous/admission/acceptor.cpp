// Decides which connections are closed: those that send too much, too late or no request, and the oldest if there are
// too many.
#include "comm/socket/rendezvous/admission/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <thread>

namespace dtensor::sockets {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxUnknown = 128;      // connections that have not been admitted
constexpr std::chrono::seconds kMaxTime{10};  // for a connection to be admitted
constexpr std::chrono::milliseconds kNoDescriptor{1};
constexpr int kMaxLogged = 10;  // lines about closed connections

}  // namespace

void print_notice(int rank, const std::string& text) {
  std::fputs(("rank " + std::to_string(rank) + ": " + text + "\n").c_str(), stderr);
}

void Acceptor::listen(std::vector<Stream> listeners, bool same_host) {
  for (Stream& listener : listeners) listeners_.push_back({std::move(listener), same_host});
}

void Acceptor::add(Stream accepted, bool same_host) {
  Pending& added = pending_.emplace_back();
  added.address = describe_peer(accepted);
  added.stream = std::move(accepted);
  added.same_host = same_host;
  added.since = Clock::now();
}

void Acceptor::poll(std::chrono::milliseconds time) {
  std::vector<pollfd> events;
  for (const Listener& listener : listeners_) events.push_back({listener.stream.fd(), POLLIN, 0});
  for (const Pending& p : pending_) {
    events.push_back({p.stream.fd(), static_cast<short>(p.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
  }
  if (::poll(events.data(), events.size(), static_cast<int>(time.count())) <= 0) return drop_late_and_finished();
  auto event = events.begin() + static_cast<std::ptrdiff_t>(listeners_.size());
  for (Pending& p : pending_) {
    const int ready = (event++)->revents;
    if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0) read(p);
    if (p.stream.open() && !p.out.empty()) write(p);
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (events[i].revents != 0) accept_from(listeners_[i]);
  }
  drop_late_and_finished();
}

void Acceptor::accept_from(const Listener& listener) {
  for (std::size_t i = 0; i < kMaxUnknown; ++i) {
    Stream accepted = accept_next(listener.stream);
    if (accepted.open()) {
      add(std::move(accepted), listener.same_host);
      read(pending_.back());  // a rank sends its first message at once
      continue;
    }
    if (errno != EMFILE && errno != ENFILE) return;
    if (!close_oldest("this process has no more file descriptors")) std::this_thread::sleep_for(kNoDescriptor);
    return;
  }
}

// First those that have not sent a request of this job. False if there is none.
bool Acceptor::close_oldest(const std::string& why) {
  for (const bool asked : {false, true}) {
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
      return p.stream.open() && !p.entry.admitted && p.entry.asked == asked;
    });
    if (oldest != pending_.end()) return close(*oldest, why), true;
  }
  return false;
}

void Acceptor::read(Pending& pending) {
  while (pending.stream.open() && !pending.last_reply) {
    char bytes[sizeof(Answer)];
    const std::size_t space = std::max<std::size_t>(pending.wanted - pending.in.size(), 1);
    const ssize_t n = ::recv(pending.stream.fd(), bytes, std::min(space, sizeof bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return close(pending, pending.entry.admitted ? "" : "it closed before it said who it is");
    if (pending.wanted == 0) return close(pending, "it sent more than was expected");
    pending.in.append(bytes, static_cast<std::size_t>(n));
    if (!may_begin(pending)) return close(pending, "it sent no request of a rank");
    if (pending.in.size() < pending.wanted) continue;
    receive(pending);
    pending.in.clear();
  }
}

void Acceptor::write(Pending& pending) {
  const ssize_t n = ::send(pending.stream.fd(), pending.out.data(), pending.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) pending.out.erase(0, static_cast<std::size_t>(n));
  if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) pending.out.clear();
}

void Acceptor::close(Pending& pending, const std::string& why) {
  closed(pending);
  pending.stream.reset();
  if (!why.empty()) refuse(pending, why);
}

void Acceptor::refuse(Pending& pending, const std::string& why) {
  pending.last_reply = true;
  if (++logged_ > kMaxLogged) return;
  print_notice(rank_, "closed a connection from " + pending.address + ": " + why +
                          (logged_ == kMaxLogged ? "; further ones are not reported" : ""));
}

void Acceptor::drop_late_and_finished() {
  const auto now = Clock::now();
  for (Pending& p : pending_) {
    if (p.stream.open() && !p.entry.admitted && now - p.since > kMaxTime)
      close(p, "it did not say who it is within 10 s");
  }
  const auto unknown = [](const Pending& p) { return p.stream.open() && !p.entry.admitted; };
  const auto count = static_cast<std::size_t>(std::count_if(pending_.begin(), pending_.end(), unknown));
  for (std::size_t i = kMaxUnknown; i < count; ++i) close_oldest("there are too many connections");
  pending_.remove_if([](const Pending& p) { return !p.stream.open() || (p.last_reply && p.out.empty()); });
}

}  // namespace dtensor::sockets
