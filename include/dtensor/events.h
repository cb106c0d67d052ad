// The event stream: operators, collectives and redistributions of this rank, as they happen. Used for traces, counters
// and planners. Costs one test when there is no listener.
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

// Part of a training step.
enum class Phase : std::uint8_t { forward, backward };

// An operator, a collective, a redistribution or a wait of this rank.
struct Event {
  // The type of the event.
  enum class Kind : std::uint8_t {
    op,
    redistribute,
    collective,
    wait,          // the first wait for a collective's results: its name, axis, ranks and sequence number, and no bytes
    contribution,  // what this rank gives to a collective or sends, before it starts: name, axis and tensors
  };
  // The type and the name.
  Kind kind = Kind::op;
  std::string name;        // operator, plan text or collective
  std::string axis;        // mesh dimension name(s) of a collective, else empty
  std::int64_t bytes = 0;  // received from other ranks; for an operator: bytes received to redistribute its operands
  std::chrono::steady_clock::time_point begin, end;
  std::string operands = {};  // for an operator: "f32[4, 8] [S(0), R], f32[8, 2] [R, R]"
  // For a collective: the world ranks of its members, and its sequence number, equal on all members, so that events of
  // different ranks can be matched. Empty for send and recv.
  std::vector<std::int64_t> ranks = {};
  std::uint64_t sequence = 0;
  // The innermost ModuleScope ("" if there is none), and whether forward or backward ran.
  std::string module = {};
  Phase phase = Phase::forward;
  // For an operator its results (except of at::empty), for a contribution its tensors. Valid until the listener
  // returns.
  at::TensorList tensors = {};
};

// While it lives, collectives of this thread are attributed to these tensors, in addition to those of outer tags;
// CommDebugMode uses this to name them. The library tags the operands that it moves, gradients of leaf tensors and
// fully_shard units.
class DTENSOR_API CollectiveTag {
 public:
  // Returns the local tensors. Called only by storages().
  using LocalTensorsFn = std::function<std::vector<at::Tensor>()>;
  explicit CollectiveTag(LocalTensorsFn parts);
  ~CollectiveTag();
  CollectiveTag(const CollectiveTag&) = delete;
  CollectiveTag& operator=(const CollectiveTag&) = delete;

  // The storages of the local tensors of all tags of this thread. In a listener for collectives: the parameters that
  // are gathered or whose gradients are reduced. Activations have none, nor have tensors without a tag.
  static std::vector<const void*> storages();

 private:
  LocalTensorsFn parts_;
  const CollectiveTag* outer_;
};

// Calls `listener` for each event of these kinds on this thread while it lives, including backward passes that start
// meanwhile: on an autograd thread where those run there, one call at a time. Listeners nest; all of them are called. A
// listener may destroy itself in its callback. Without a listener, operators keep their fast path.
class DTENSOR_API EventListener {
 public:
  // The kinds for which the listener is called.
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
