// Event listeners, stored as scoped values. One test detects that there is no listener.
#include "comm/event_listeners.h"

#include <mutex>
#include <utility>

#include "scope/module_scope.h"
#include "scope/thread_state.h"

namespace dtensor {
namespace {

struct Listener {
  std::shared_ptr<const std::function<void(const Event&)>> on_event;
  std::uint8_t kinds;
  // Autograd threads emit events concurrently; recursive, because a listener may run operators itself.
  std::shared_ptr<std::recursive_mutex> mutex = std::make_shared<std::recursive_mutex>();
};

std::uint8_t bit_of(Event::Kind kind) { return static_cast<std::uint8_t>(1u << static_cast<unsigned>(kind)); }

}  // namespace

struct EventListener::State : ScopedValue<Listener> {
  using ScopedValue::ScopedValue;
};

EventListener::EventListener(std::function<void(const Event&)> listener, Kinds kinds) {
  std::uint8_t bits = 0;
  for (const auto kind : kinds) bits |= bit_of(kind);
  const bool observes_operators = (bits & bit_of(Event::Kind::op)) != 0;
  auto on_event = std::make_shared<const std::function<void(const Event&)>>(std::move(listener));
  state_ = std::make_unique<State>(Listener{std::move(on_event), bits}, Recompute::unchanged,
                                   OperatorScope{observes_operators});
}

EventListener::~EventListener() = default;

CollectiveTag::CollectiveTag(LocalTensorsFn parts)
    : parts_(std::move(parts)), outer_(std::exchange(thread_state().call.tag, this)) {}

CollectiveTag::~CollectiveTag() { thread_state().call.tag = outer_; }

std::vector<const void*> CollectiveTag::storages() {
  std::vector<const void*> all;
  for (const auto* tag = thread_state().call.tag; tag != nullptr; tag = tag->outer_) {
    for (const at::Tensor& part : tag->parts_()) {
      if (part.defined() && part.has_storage()) all.push_back(part.storage().unsafeGetStorageImpl());
    }
  }
  return all;
}

bool detail::has_listeners(Event::Kind kind) {
  bool found = false;
  ScopedValue<Listener>::for_each([&](const Listener& l) { found = found || (l.kinds & bit_of(kind)) != 0; });
  return found;
}

void emit_event(Event event) {
  event.end = std::chrono::steady_clock::now();
  ModuleAndPhase place = current_module_and_phase();
  event.module = std::move(place.module);
  event.phase = place.phase;
  ScopedValue<Listener>::for_each([&](const Listener& listener) {
    if ((listener.kinds & bit_of(event.kind)) == 0) return;
    const auto on_event = listener.on_event;  // a copy: the listener may destroy itself
    const auto mutex = listener.mutex;
    const std::lock_guard lock(*mutex);
    (*on_event)(event);
  });
}

}  // namespace dtensor
