// The stack of event listeners of each thread: an intrusive list, so that an event costs one test where nobody listens.
#include "comm/events.h"

#include <utility>

namespace dtensor {

constinit thread_local std::uint8_t detail::wanted_events = 0;

struct EventListener::State {
  std::function<void(const Event&)> hear;
  std::uint8_t kinds = 0;
  State* outer = nullptr;

  static thread_local State* innermost;

  static void count_kinds() {
    detail::wanted_events = 0;
    for (const State* s = innermost; s != nullptr; s = s->outer) detail::wanted_events |= s->kinds;
  }
  // Listeners are scopes, but one that is held by a smart pointer may die before an inner one.
  static void unlink(const State* gone) {
    State** link = &innermost;
    while (*link != nullptr && *link != gone) link = &(*link)->outer;
    if (*link == gone) *link = gone->outer;
    count_kinds();
  }
  static void tell(const Event& event) {
    for (const State* s = innermost; s != nullptr; s = s->outer) {
      if ((s->kinds & detail::bit_of(event.kind)) != 0) s->hear(event);
    }
  }
};

thread_local EventListener::State* EventListener::State::innermost = nullptr;

EventListener::EventListener(std::function<void(const Event&)> listener, Kinds kinds)
    : state_(new State{std::move(listener), 0, State::innermost}) {
  for (const Event::Kind kind : kinds) state_->kinds |= detail::bit_of(kind);
  State::innermost = state_.get();
  State::count_kinds();
}

EventListener::~EventListener() { State::unlink(state_.get()); }

void emit_event(const Event& event) { EventListener::deliver(event); }

void EventListener::deliver(const Event& event) { State::tell(event); }

}  // namespace dtensor
