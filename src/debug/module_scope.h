// The stack of module scopes of each thread, and which scope an autograd node was made in.
#pragma once

#include <string>

#include "dtensor/debug.h"

namespace dtensor {

// While one lives on this thread, scopes remember which autograd nodes they made.
class NodeRecorder {
 public:
  NodeRecorder();
  ~NodeRecorder();
  NodeRecorder(const NodeRecorder&) = delete;
  NodeRecorder& operator=(const NodeRecorder&) = delete;
};

struct Place {
  std::string module;
  Phase phase = Phase::forward;
};

// Where this thread is: in a backward pass the module whose forward made the node that runs now (or ran last: the
// reduction of a leaf's gradient follows its last node), otherwise the innermost scope.
Place current_place();

}  // namespace dtensor
