// Values that are current on a thread while an object lives, and in the backward passes that start in that time, on
// whichever threads autograd runs them (a device's nodes run on a thread of their own). The innermost of a type is
// current.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <typeinfo>

#include "dtensor/export.h"

namespace dtensor {

class ScopeSnapshot;

// Which value a function sees that runs again in backward (checkpoint()). Each scope decides.
enum class Recompute : std::uint8_t {
  restored,   // that of the forward pass: the value decides what the function computes
  unchanged,  // that of the backward pass: the value observes the thread, or belongs to the pass
};

// Whether operators look for the value at every call, which costs them their fast path.
enum class OperatorScope : bool { no, yes };

namespace detail {

// A value of some type that is current on this thread while the frame lives.
class DTENSOR_API ScopeFrame {
 public:
  // Opens a scope of a restored value; null: one that hides the scopes around it.
  using Reopen = std::shared_ptr<const void> (*)(const std::shared_ptr<const void>& value);

  struct Kind {
    const std::type_info& type;
    Recompute recompute;
    OperatorScope operators;
    Reopen reopen;  // null: a frame with the value is all
  };
  ScopeFrame(const Kind& kind, std::shared_ptr<const void> value);
  ~ScopeFrame();  // in any order
  ScopeFrame(const ScopeFrame&) = delete;
  ScopeFrame& operator=(const ScopeFrame&) = delete;

  static const void* innermost(const std::type_info& type);
  static void for_each(const std::type_info& type, const std::function<void(const void*)>& visit);

 private:
  friend class dtensor::ScopeSnapshot;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace detail

// A value of its type that is current on this thread while the object lives, unless an inner one hides it.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T value, Recompute recompute, OperatorScope operators = OperatorScope::no,
              detail::ScopeFrame::Reopen reopen = nullptr)
      : frame_({typeid(T), recompute, operators, reopen}, std::make_shared<const T>(std::move(value))) {}

  // Null if no scope is open.
  static const T* current() { return static_cast<const T*>(detail::ScopeFrame::innermost(typeid(T))); }
  // Visits the innermost value first.
  static void for_each(const std::function<void(const T&)>& visit) {
    detail::ScopeFrame::for_each(typeid(T), [&](const void* value) { visit(*static_cast<const T*>(value)); });
  }

 private:
  detail::ScopeFrame frame_;
};

// For classes of public headers, which do not include ScopedValue. The scope is open while the pointer or a copy of it
// exists.
template <class T>
std::shared_ptr<const void> open_scope(T value, Recompute recompute, OperatorScope operators = OperatorScope::no) {
  return std::make_shared<const ScopedValue<T>>(std::move(value), recompute, operators);
}

}  // namespace dtensor
