// Faults of one rank: bits that flip in its memory.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "dtensor/events.h"
#include "dtensor/tensor.h"

namespace dtensor::test {

// Flips a bit of this rank's part of a tensor. Returns false if it has no floating-point element.
inline bool flip_bit(const at::Tensor& tensor, std::uint64_t draw) {
  const at::NoGradGuard no_grad;
  if (!tensor.defined() || (is_dtensor(tensor) && !DTensor(tensor).mesh().is_member())) return false;
  const at::Tensor part = is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor;
  if (part.numel() == 0 || !part.is_floating_point()) return false;
  auto* byte = static_cast<std::uint8_t*>(part.data_ptr());
  std::int64_t index = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(part.numel())), offset = 0;
  for (std::int64_t d = part.dim(); d-- > 0; index /= part.size(d)) offset += index % part.size(d) * part.stride(d);
  const auto size = static_cast<std::int64_t>(part.element_size());
  byte[offset * size + static_cast<std::int64_t>((draw >> 40) % static_cast<std::uint64_t>(size))] ^=
      static_cast<std::uint8_t>(1u << ((draw >> 50) % 8));
  return true;
}

// Where and when a bit of this rank flips.
struct Fault {
  enum class Target : std::uint8_t { result, contribution, other };
  Target target = Target::result;
  std::int64_t number = 0;  // Operators of this rank that run before it.
  std::uint64_t draw = 0;   // The element and the bit.
  bool always = false;      // In each later operator of the same name, as a broken unit does.
  at::Tensor other = {};
};

// Lets a fault happen while it lives. Create it after the listeners that are to see the flipped bit.
class FaultInjection {
 public:
  explicit FaultInjection(Fault fault)
      : fault_(std::move(fault)), operators_([this](const Event& event) { on_operator(event); }, {Event::Kind::op}) {}

  bool happened() const { return !where_.empty(); }
  // Module, phase and operator whose result was flipped.
  const std::string& where() const { return where_; }

 private:
  void on_operator(const Event& event) {
    if (std::exchange(flipping_, true)) return;  // Reading a DTensor is an operator too.
    flip_in(event);
    flipping_ = false;
  }
  void flip_in(const Event& event) {
    if (happened() ? !fault_.always || event.name != name_ : count_++ < fault_.number) return;
    if (fault_.target == Fault::Target::contribution) {
      // Created now, it is called before the listeners of the pass.
      if (!sends_)
        sends_.emplace([this](const Event& sent) { on_contribution(sent); },
                       EventListener::Kinds{Event::Kind::contribution});
      return;
    }
    if (fault_.target == Fault::Target::other) {
      if (flip_bit(fault_.other, fault_.draw)) note(event);
      return;
    }
    for (const at::Tensor& result : event.tensors) {
      if (flip_bit(result, fault_.draw)) return note(event);
    }
  }
  void on_contribution(const Event& event) {
    if (happened()) return;
    for (const at::Tensor& sent : event.tensors) {
      if (flip_bit(sent, fault_.draw)) return note(event);
    }
  }
  void note(const Event& event) {
    name_ = event.name;
    where_ = (event.module.empty() ? "outside any module" : "in " + event.module) +
             (event.phase == Phase::forward ? ", forward, by " : ", backward, by ") + event.name;
  }

  Fault fault_;
  std::int64_t count_ = 0;
  bool flipping_ = false;
  std::string name_, where_;
  EventListener operators_;
  std::optional<EventListener> sends_;
};

}  // namespace dtensor::test
