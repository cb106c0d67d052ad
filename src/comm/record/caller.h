// The operator and module for which this thread communicates, from its CallContext.
#pragma once

#include <string>

#include "dtensor/comm_backend.h"
#include "scope/thread_state.h"

namespace dtensor {

// During its lifetime, communication of this thread is attributed to `name` (an operator, redistribute), which must
// live as long as the program. The outermost scope applies, since that is what the program called.
class CallerScope {
 public:
  explicit CallerScope(const std::string& name) : outer_(current()) {
    if (outer_ == nullptr) thread_state().call.caller = &name;
  }
  ~CallerScope() { thread_state().call.caller = outer_; }
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

  static const std::string* current() { return thread_state().call.caller; }  // null: none

 private:
  const std::string* outer_;
};

// The interned `path`; null if it is empty.
const std::string* interned_module_path(const std::string& path);
// "the backward pass of h.0"; "the backward pass" if `module` is empty.
const std::string* backward_pass_of(const std::string& module);

// The module that runs on this thread, "the backward pass of h.0" in backward; null: none.
const std::string* calling_module();

// " for aten::mm in h.0", from the parts that are not null.
std::string caller_text(const CollectiveCall& call);

}  // namespace dtensor
