// Gradients that are sums on mesh axes where their leaf is whole (plain data parallelism, norms under sequence
// parallelism) wait for each other and are summed up packed: one collective for all of them, at the end of the backward
// pass or when enough have come.
#pragma once

#include "dtensor/tensor.h"

namespace dtensor {

// What NoGradientSync left in .grad, taken out to be reduced together with a new gradient. It comes back where that
// fails.
class EarlierGradient {
 public:
  EarlierGradient() = default;
  explicit EarlierGradient(const DTensor& leaf);
  EarlierGradient(EarlierGradient&&) noexcept = default;
  EarlierGradient& operator=(EarlierGradient&&) noexcept = default;
  ~EarlierGradient();
  const at::Tensor& sum() const { return sum_; }  // undefined: there was none
  // It is part of what is accumulated next.
  void done() { sum_.reset(); }

 private:
  DTensor leaf_;
  at::Tensor sum_;
};

// True: what `gradient` is brought to waits, and when the pass ends it is in leaf.grad(), in placements `wanted`.
// False: there is nothing to wait for. `earlier` is part of the gradient, and is taken only where that waits.
bool reduce_at_end(const DTensor& leaf, const DTensor& gradient, const Placements& wanted, EarlierGradient& earlier);

}  // namespace dtensor
