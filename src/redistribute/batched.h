// Several tensors on their way to other placements: their collectives are packed, one for each kind, mesh, group of
// axes and dtype, instead of one for each tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <functional>
#include <vector>

#include "redistribute/plan/plan.h"
#include "redistribute/plan/split_layout.h"

namespace dtensor {

// Collective over the meshes of its tensors, which every member adds in the same order.
class RedistributeBucket {
 public:
  // `local` as execute_plan takes it. `plan` and `from` must outlive the bucket.
  void add(const RedistributePlan& plan, const TensorSpec& from, at::Tensor local);
  // Ends the collectives under way and begins those that come next. False: there are none, all have arrived.
  bool advance();
  // Whether some of what is under way runs beside the caller.
  bool in_background() const { return in_background_; }
  void finish() {
    while (advance()) {
    }
  }
  // As execute_plan gives it, bit for bit, in the memory order of its spec where it was reduced. Results may share one
  // block of memory.
  const at::Tensor& operator[](std::size_t index) const { return pending_[index].current; }

  struct Pending {
    const RedistributePlan* plan;
    const TensorSpec* from;
    TensorGeometry geometry;
    at::Tensor given, current;  // as it was, as it is now
    std::size_t next = 0;       // edge of the plan
    bool packed = true;         // else it went by itself
  };

 private:
  void report() const;

  std::deque<Pending> pending_;  // that stay where they are
  std::vector<std::function<void()>> under_way_;
  bool in_background_ = false;
  std::chrono::steady_clock::time_point begin_ = {};
};

}  // namespace dtensor
