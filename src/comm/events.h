// Delivers events to the listeners of this thread.
#pragma once

#include "dtensor/events.h"
#include "scope/scoped_value.h"

namespace dtensor {

namespace detail {
bool anybody_hears(Event::Kind kind);
}

// Whether anybody listens to this kind: build an Event only then. Operators, of which there are many, have a test
// first.
inline bool events_on(Event::Kind kind) {
  return (kind != Event::Kind::op || scopes_watched()) && detail::anybody_hears(kind);
}

// Gives `event`, with module and phase of this thread, to every listener that wants its kind, innermost first.
void emit_event(Event event);

}  // namespace dtensor
