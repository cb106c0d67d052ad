// Delivers events to the listeners of this thread.
#pragma once

#include "dtensor/events.h"

namespace dtensor {

namespace detail {
// The innermost listener of this thread; an opaque pointer so that the test below inlines.
extern constinit thread_local const void* innermost_listener;
}  // namespace detail

// Whether anybody on this thread listens: build an Event only then.
inline bool events_on() { return detail::innermost_listener != nullptr; }

// Gives `event` to every listener of this thread, innermost first.
void emit_event(const Event& event);

}  // namespace dtensor
