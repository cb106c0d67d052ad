// The reduction of a list of gradients, from its collectives to the accumulation of the results.
#pragma once

#include <vector>

#include "dtensor/comm.h"
#include "internal/gradient_hooks.h"
#include "internal/ranks/named_calls.h"

namespace dtensor {

// Takes the gradient that NoGradientSync or NoReplicaSync accumulated out of a leaf's .grad, to reduce it with a new
// gradient. The destructor restores it, unless done() was called.
class DTENSOR_API UnsynchronizedGradient {
 public:
  UnsynchronizedGradient() = default;
  explicit UnsynchronizedGradient(const DTensor& leaf);
  ~UnsynchronizedGradient();
  UnsynchronizedGradient(UnsynchronizedGradient&&) noexcept = default;
  UnsynchronizedGradient& operator=(UnsynchronizedGradient&&) noexcept = default;  // does not restore the gradient

  const at::Tensor& sum() const { return sum_; }  // undefined if there was none
  // Call it once the sum is part of the next accumulated gradient.
  void done() { sum_.reset(); }

 private:
  DTensor leaf_;
  at::Tensor sum_;
};

struct UnreducedGradient {
  DTensor leaf;
  at::Tensor local;                     // this rank's; sums are in place
  Placements placements;                // after the collectives that were started
  UnsynchronizedGradient earlier = {};  // the part of it that was in leaf.grad()
};

// Gradients of one kind (ranks, dtype, operation) share a collective. Members list them in the same order.
struct GradientReduction {
  struct Collective {
    Communicator comm;
    at::ScalarType dtype;
    ReduceOp op;
    std::vector<UnreducedGradient*> gradients = {};
    std::vector<at::Tensor> outputs = {};  // become the local tensors
    Work work = {};
  };

  // Adds the gradient to the next collective of its kind.
  Collective& add(UnreducedGradient& gradient, const Communicator& comm, at::ScalarType dtype, ReduceOp op);
  // Adds it to the sums of start_sums(). It is Partial on `axes`, over whose ranks `comm` is.
  void add_sum(UnreducedGradient& gradient, at::IntArrayRef axes, const Communicator& comm, at::ScalarType dtype);
  int start_sums();  // returns the number of collectives
  bool in_background() const;
  void wait();     // completes the collectives
  void finish();   // completes them and accumulates
  void discard();  // instead of finish: ignores the results

  std::vector<UnreducedGradient> gradients;
  std::vector<Collective> collectives = {};
  NamedCallScope::Name name = {};  // of what runs until it is finished; null: none
};

// The same tensor if it has this dtype.
at::Tensor in_dtype(const at::Tensor& tensor, at::ScalarType dtype);

}  // namespace dtensor
