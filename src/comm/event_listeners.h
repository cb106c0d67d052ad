// Delivers events to the listeners of this thread.
#pragma once

#include "dtensor/events.h"
#include "scope/scope_frames.h"

namespace dtensor {

namespace detail {
bool has_listeners(Event::Kind kind);
}

// Whether there is a listener for this kind; build an Event only then. Operators are frequent, so a cheap test comes
// first.
inline bool is_listening(Event::Kind kind) {
  return (kind != Event::Kind::op || any_operator_scope()) && detail::has_listeners(kind);
}

// Sets end, module and phase of `event` and passes it to each listener for its kind, innermost first.
void emit_event(Event event);

}  // namespace dtensor
