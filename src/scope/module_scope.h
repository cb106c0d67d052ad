// Each thread's stack of module scopes, and the module of an autograd node.
#pragma once

#include <string>

#include "dtensor/debug.h"
#include "internal/scoped_value.h"

namespace dtensor {

// While active on this thread, scopes record the autograd nodes that they create, so that threads of a backward pass
// find a node's module.
class NodeRecorder {
 public:
  NodeRecorder();
  ~NodeRecorder();
  NodeRecorder(const NodeRecorder&) = delete;
  NodeRecorder& operator=(const NodeRecorder&) = delete;

  struct Ranges;
  using RangesPtr = std::shared_ptr<Ranges>;
  static RangesPtr current();  // null if no recorder is active
  // Module of the node that runs on this thread in backward pass `pass`, or ran last.
  static std::string module_of_node(int pass);

 private:
  ScopedValue<RangesPtr> scope_;
};

struct ModuleAndPhase {
  std::string module;
  Phase phase = Phase::forward;
};

// The current module of this thread. In a backward pass it is the module whose forward created the current node. After
// a node it is still that node's module, since the gradient reduction of a leaf follows its last node. Otherwise it is
// the innermost scope.
ModuleAndPhase current_module_and_phase();

}  // namespace dtensor
