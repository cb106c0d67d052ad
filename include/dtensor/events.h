// The event stream: what the library does on this rank, as it does it. Feeds traces, counters and planners; costs one
// test where nobody listens.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// Of a training step.
enum class Phase : std::uint8_t { forward, backward };

// Something that a rank did: an operator, a collective, a redistribution.
struct Event {
  // What it was.
  enum class Kind : std::uint8_t { op, redistribute, collective };
  // What it was, and which.
  Kind kind = Kind::op;
  std::string name;        // operator, plan text or collective
  std::string axis;        // mesh dimension name(s) of a collective, else empty
  std::int64_t bytes = 0;  // received from other ranks; of an operator: to bring its operands where it needs them
  std::chrono::steady_clock::time_point begin, end;
  std::string operands = {};  // of an operator: "f32[4, 8] [S(0), R], f32[8, 2] [R, R]"
  // Of a collective: the world ranks that take part, and its number among theirs, so that each finds it in the events
  // of the others. Of messages: none.
  std::vector<std::int64_t> ranks = {};
  std::uint64_t sequence = 0;
  // The innermost ModuleScope ("" outside any), and whether forward or backward ran.
  std::string module = {};
  Phase phase = Phase::forward;
};

// While it lives, collectives of this thread are for these tensors, beside those of outer ones; so CommDebugMode can
// name them. The library says so of operands that it moves, of gradients of leaves and of the units of fully_shard.
class DTENSOR_API CollectiveTag {
 public:
  // Local parts; called where somebody asks for storages(), and only then.
  using LocalTensorsFn = std::function<std::vector<at::Tensor>()>;
  explicit CollectiveTag(LocalTensorsFn parts);
  ~CollectiveTag();
  CollectiveTag(const CollectiveTag&) = delete;
  CollectiveTag& operator=(const CollectiveTag&) = delete;

  // Of all that live on this thread the storages of the local parts. For a listener that hears a collective: the
  // parameters that it gathers or whose gradients it reduces; none for activations, and what no CollectiveTag names.
  static std::vector<const void*> storages();

 private:
  LocalTensorsFn parts_;
  const CollectiveTag* outer_;
};

// Calls `listener` for each event of these kinds on this thread while it lives, and of backward passes that start
// meanwhile: on a thread of autograd's where those run there, one call at a time. Nests: all listeners hear. One may
// close itself while it hears. Operators keep their fast path where nobody listens.
class DTENSOR_API EventListener {
 public:
  // The kinds that a listener hears.
  using Kinds = std::initializer_list<Event::Kind>;
  explicit EventListener(std::function<void(const Event&)> listener,
                         Kinds kinds = {Event::Kind::op, Event::Kind::redistribute, Event::Kind::collective});
  ~EventListener();
  EventListener(const EventListener&) = delete;
  EventListener& operator=(const EventListener&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dtensor
