// The stack of event listeners of each thread: an intrusive list, so that an event costs one test where nobody listens.
#include "comm/events.h"

#include <utility>

namespace dtensor {

constinit thread_local const void* detail::innermost_listener = nullptr;

namespace {
struct Listener {
  std::function<void(const Event&)> hear;
  const Listener* outer;
};
const Listener* innermost() { return static_cast<const Listener*>(detail::innermost_listener); }
}  // namespace

struct EventListener::State : Listener {
  // Listeners are scopes, but one that is held by a smart pointer may die before an inner one.
  static void unlink(const Listener* gone) {
    if (innermost() == gone) {
      detail::innermost_listener = gone->outer;
      return;
    }
    for (auto* s = const_cast<Listener*>(innermost()); s != nullptr; s = const_cast<Listener*>(s->outer)) {
      if (s->outer == gone) s->outer = gone->outer;
    }
  }
};

EventListener::EventListener(std::function<void(const Event&)> listener)
    : state_(new State{{std::move(listener), innermost()}}) {
  detail::innermost_listener = static_cast<const Listener*>(state_.get());
}

EventListener::~EventListener() { State::unlink(state_.get()); }

void emit_event(const Event& event) {
  for (const Listener* l = innermost(); l != nullptr; l = l->outer) l->hear(event);
}

}  // namespace dtensor
