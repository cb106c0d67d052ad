// The operator and module for which this thread communicates, for messages about ranks that disagree.
#pragma once

#include <string>

#include "dtensor/comm_backend.h"

namespace dtensor {

// During its lifetime, communication of this thread is attributed to `name` (an operator, redistribute), which must
// live as long as the program. The outermost scope applies, since that is what the program called.
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

// The interned `path`; null if it is empty.
const std::string* interned_module_path(const std::string& path);

// The module that runs on this thread, "the backward pass of h.0" in backward; null: none.
const std::string* calling_module();

// " for aten::mm in h.0", from the parts that are not null.
std::string caller_text(const CollectiveCall& call);

}  // namespace dtensor
