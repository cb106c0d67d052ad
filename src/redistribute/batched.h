// Redistributes several tensors with packed collectives: one for each kind, mesh, group of axes and dtype, instead of
// one for each tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>

#include "redistribute/plan/plan.h"
#include "redistribute/plan/split_layout.h"

namespace dtensor {

// Collective over the meshes of its tensors; every member adds them in the same order.
class RedistributeBucket {
 public:
  // `local` as in execute_plan. `plan` and `from` must outlive the bucket.
  void add(const RedistributePlan& plan, const TensorSpec& from, at::Tensor local);
  void run();
  // Bitwise equal to the result of execute_plan; reduced tensors are in the memory order of their specs. Results may
  // share one block of memory.
  const at::Tensor& operator[](std::size_t index) const { return pending_[index].current; }

  struct Pending {
    const RedistributePlan* plan;
    const TensorSpec* from;
    TensorGeometry geometry;
    at::Tensor given, current;  // the input, and the current state
    std::size_t next = 0;       // next edge of the plan
    bool packed = true;         // false: redistributed separately
  };

 private:
  void report(std::chrono::steady_clock::time_point begin) const;

  std::deque<Pending> pending_;  // a deque, so that entries do not move
};

}  // namespace dtensor
