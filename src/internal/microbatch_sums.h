// Whether gradients of microbatches, added in turn, have the bits of the full batch's gradient in a BitIdentical scope.
#pragma once

#include <cstdint>

namespace dtensor {

// Called by kernels: a sum over the batch has this many leaves. Counts in backward passes only.
void note_batch_sum(std::int64_t leaves);
// Called in a backward pass with sums that those of microbatches are no subtrees of: over rows whose numbers depend on
// values, as those of experts do, or rounded to a half type.
void note_indivisible_sum();

// The microbatches whose gradients are in one leaf's .grad. The sum of the first k of them is a subtree of the full
// batch's tree for at most three parts, the last of which may be smaller: a + b, or (a + b) + c.
class MicrobatchSums {
 public:
  // Throws if the current pass adds to a gradient (`continues`) so that bits would differ from the full batch's.
  void add(bool continues);

 private:
  int pass_ = -1, count_ = 0;
  std::int64_t leaves_ = 0;  // of the last part, summed over the sums of its pass
  bool composes_ = true;     // all parts have equal powers of two of leaves, whose sums are not rounded
};

}  // namespace dtensor
