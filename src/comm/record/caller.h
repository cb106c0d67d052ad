// For which operator, and in which module, this thread communicates: what ranks that disagree tell of each other.
#pragma once

#include <string>

#include "dtensor/comm_backend.h"

namespace dtensor {

// While it lives, what this thread communicates is for `name` (an operator, redistribute), which lives for the program.
// The outermost counts: what the program called.
class CallerScope {
 public:
  explicit CallerScope(const std::string& name) : outer_(current_) {
    if (outer_ == nullptr) current_ = &name;
  }
  ~CallerScope() { current_ = outer_; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

  static const std::string* current() { return current_; }  // null: none

 private:
  const std::string* outer_;
  static thread_local const std::string* current_;
};

inline constinit thread_local const std::string* CallerScope::current_ = nullptr;

// `path` as a text that lives for the program; null where it is empty.
const std::string* interned_module_path(const std::string& path);

// The module that runs on this thread, "the backward pass of h.0" and the like in backward; null: none.
const std::string* calling_module();

// " for aten::mm in h.0", of those that are not null.
std::string caller_text(const CollectiveCall& call);

}  // namespace dtensor
