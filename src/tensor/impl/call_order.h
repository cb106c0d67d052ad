// Which of this thread's calls the ranks compare.
#pragma once

namespace dtensor {

// Whether what this thread calls comes in an order that is the same on every rank. A backward pass over tensors on two
// devices (parameters in host memory) runs on two threads: those of the one that asked first do.
bool is_call_order_deterministic();

}  // namespace dtensor
