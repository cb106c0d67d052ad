// Delivers events to the listeners of this thread.
#pragma once

#include "dtensor/events.h"
#include "scope/scope_frames.h"

namespace dtensor {

namespace detail {
bool has_listeners(Event::Kind kind);
}

// Whether anybody listens to this kind: build an Event only then. Operators, of which there are many, have a test
// first.
inline bool is_listening(Event::Kind kind) {
  return (kind != Event::Kind::op || any_observing_scope()) && detail::has_listeners(kind);
}

// Gives `event`, with module and phase of this thread, to every listener that wants its kind, innermost first.
void emit_event(Event event);

}  // namespace dtensor
