// Values that hold for a thread while an object lives, and in the backward passes that start meanwhile, on whatever
// threads autograd runs them (a device's nodes run on a thread of their own). One per type, the innermost counts.
#pragma once

#include <functional>
#include <memory>
#include <typeinfo>

#include "dtensor/export.h"

namespace dtensor {

namespace detail {

// A value of some type that counts on this thread while it lives.
class DTENSOR_API ScopeFrame {
 public:
  // `watched`: operators look for such values at every call, which costs them their fast path.
  ScopeFrame(const std::type_info& type, std::shared_ptr<const void> value, bool watched);
  ~ScopeFrame();  // in any order
  ScopeFrame(const ScopeFrame&) = delete;
  ScopeFrame& operator=(const ScopeFrame&) = delete;

  static const void* innermost(const std::type_info& type);
  static void for_each(const std::type_info& type, const std::function<void(const void*)>& visit);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace detail

// A value of its type that counts on this thread while it lives; the innermost one counts.
template <class T>
class ScopedValue {
 public:
  explicit ScopedValue(T value, bool watched = false)
      : frame_(typeid(T), std::make_shared<const T>(std::move(value)), watched) {}

  // Null where no scope is open.
  static const T* current() { return static_cast<const T*>(detail::ScopeFrame::innermost(typeid(T))); }
  // Innermost first.
  static void for_each(const std::function<void(const T&)>& visit) {
    detail::ScopeFrame::for_each(typeid(T), [&](const void* value) { visit(*static_cast<const T*>(value)); });
  }

 private:
  detail::ScopeFrame frame_;
};

// For classes of public headers, which do not name ScopedValue: the scope is open as long as the pointer or a copy
// lives.
template <class T>
std::shared_ptr<const void> open_scope(T value, bool watched = false) {
  return std::make_shared<const ScopedValue<T>>(std::move(value), watched);
}

}  // namespace dtensor
