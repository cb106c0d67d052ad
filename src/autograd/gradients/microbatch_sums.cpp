// Sums over the batch are noted for each backward pass; a leaf compares those of its parts.
#include "internal/microbatch_sums.h"

#include <c10/util/Exception.h>

#include "internal/gradient_hooks.h"
#include "internal/scoped_value.h"

namespace dtensor {
namespace {

constexpr int kMostParts = 3;

struct BatchSums {
  int pass = -1;
  std::int64_t leaves = 0;         // of all sums so far
  const char* obstacle = nullptr;  // null: each of them has a power of two of leaves, and none is indivisible
};

// Of the last pass on this thread: the caller's on CPUs, autograd's thread of the device elsewhere.
thread_local BatchSums last_sums;

BatchSums& batch_sums() {
  if (last_sums.pass == current_backward_id()) return last_sums;
  const auto* first_half = ScopedValue<FirstHalfOfPass>::current();
  return last_sums = {current_backward_id(), 0, first_half == nullptr ? nullptr : first_half->indivisible_sum};
}

}  // namespace

void note_batch_sum(std::int64_t leaves) {
  if (current_backward_id() < 0) return;
  batch_sums().leaves += leaves;
  if ((leaves & (leaves - 1)) != 0) note_indivisible_sum("numbers of leaves that are not powers of two");
}

void note_batch_sum(std::int64_t leaves, std::int64_t size, std::int64_t block) {
  note_batch_sum(leaves);
  if (size % block != 0) note_indivisible_sum("a last block of the batch that is not full");
}

void note_indivisible_sum(const char* what) {
  if (current_backward_id() < 0) return;
  auto& sums = batch_sums();
  if (sums.obstacle == nullptr) sums.obstacle = what;
}

const char* indivisible_sum_of_last_pass() { return last_sums.obstacle; }

void MicrobatchSums::add(bool continues) {
  const BatchSums& sums = batch_sums();
  if (pass_ == sums.pass) return;  // another segment of a recomputed pass
  pass_ = sums.pass;
  if (!continues) *this = {}, pass_ = sums.pass;
  TORCH_CHECK_NOT_IMPLEMENTED(
      count_ == 0 || (count_ < kMostParts && obstacle_ == nullptr && sums.leaves <= leaves_), "microbatch ", count_ + 1,
      " of a gradient has no bit-identical form", obstacle_ == nullptr ? "" : " because of ",
      obstacle_ == nullptr ? "" : obstacle_,
      ": added in turn, microbatches have the bits of the full batch if they are at most ", kMostParts,
      ", equal powers of two in tokens and blocks of tokens, and only the last is smaller; got ", sums.leaves,
      " leaves of sums after ", leaves_,
      ". Use fewer or other microbatches. If this is another step, set .grad to None before it.");
  if (obstacle_ == nullptr) obstacle_ = sums.obstacle;
  if (obstacle_ == nullptr && count_ > 0 && sums.leaves != leaves_) obstacle_ = "a smaller microbatch before it";
  leaves_ = sums.leaves;
  ++count_;
}

}  // namespace dtensor
