// The stack of module scopes of each thread, and which scope an autograd node was made in.
#pragma once

#include <string>

#include "dtensor/debug.h"
#include "internal/scoped_value.h"

namespace dtensor {

// While one lives on this thread, scopes remember which autograd nodes they made; so it is known on the threads on
// which autograd runs them.
class NodeRecorder {
 public:
  NodeRecorder();
  ~NodeRecorder();
  NodeRecorder(const NodeRecorder&) = delete;
  NodeRecorder& operator=(const NodeRecorder&) = delete;

  struct Ranges;
  using RangesPtr = std::shared_ptr<Ranges>;
  static RangesPtr current();  // null where nobody records
  // Of the node that runs on this thread in backward pass `pass`, or ran last.
  static std::string module_of_node(int pass);

 private:
  ScopedValue<RangesPtr> scope_;
};

struct ModuleAndPhase {
  std::string module;
  Phase phase = Phase::forward;
};

// Where this thread is: in a backward pass the module whose forward made the node that runs now (or ran last: the
// reduction of a leaf's gradient follows its last node), otherwise the innermost scope.
ModuleAndPhase current_module_and_phase();

}  // namespace dtensor
