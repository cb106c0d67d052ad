// Decides which calls of this thread are compared between ranks.
#pragma once

namespace dtensor {

// Whether the calls of this thread have the same order on every rank. A backward pass over tensors on two devices
// (parameters in host memory) runs on two threads. Only the thread that calls this first in the pass is deterministic.
bool is_call_order_deterministic();

}  // namespace dtensor
