// Delivers events to the listeners of this thread.
#pragma once

#include "dtensor/events.h"

namespace dtensor {

namespace detail {
// One bit per kind that somebody on this thread listens to.
extern constinit thread_local std::uint8_t wanted_events;
constexpr std::uint8_t bit_of(Event::Kind kind) { return static_cast<std::uint8_t>(1u << static_cast<unsigned>(kind)); }
}  // namespace detail

// Whether anybody on this thread listens to this kind: build an Event only then.
inline bool events_on(Event::Kind kind) { return (detail::wanted_events & detail::bit_of(kind)) != 0; }

// Gives `event` to every listener of this thread that wants its kind, innermost first.
void emit_event(const Event& event);

}  // namespace dtensor
