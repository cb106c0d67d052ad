// Whether gradients of microbatches, added in turn, have the bits of the full batch's gradient in a BitIdentical scope.
#pragma once

#include <cstdint>

namespace dtensor {

// Called by kernels: a sum over the batch has this many leaves. Counts in backward passes only.
void note_batch_sum(std::int64_t leaves);
// As above, for blocks of `block` indices of a batch of `size`: a next microbatch would begin inside of a last block
// that is not full.
void note_batch_sum(std::int64_t leaves, std::int64_t size, std::int64_t block);
// Called in a backward pass with sums that those of microbatches are no subtrees of. `what`, a literal, names them in
// the error of the next microbatch.
void note_indivisible_sum(const char* what);

// What this thread's last backward pass noted as indivisible, or null.
const char* indivisible_sum_of_last_pass();

// A scope (ScopedValue) around the second half of a backward pass: what its first half noted.
struct FirstHalfOfPass {
  const char* indivisible_sum;
};

inline constexpr const char* kRoundedGradients = "gradients that are rounded to a half type";

// The microbatches whose gradients are in one leaf's .grad. The sum of the first k of them is a subtree of the full
// batch's tree for at most three parts, the last of which may be smaller: a + b, or (a + b) + c.
class MicrobatchSums {
 public:
  // Throws if the current pass adds to a gradient (`continues`) so that bits would differ from the full batch's.
  void add(bool continues);

 private:
  int pass_ = -1, count_ = 0;
  std::int64_t leaves_ = 0;         // of the last part, summed over the sums of its pass
  const char* obstacle_ = nullptr;  // null: all parts have equal powers of two of leaves, whose sums are not rounded
};

}  // namespace dtensor
