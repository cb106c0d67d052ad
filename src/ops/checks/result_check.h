// Checks of a call in checked mode. Replicas of operands and results are compared across ranks. Sampled calls (the
// first of each kind and some later ones) are compared with the ATen operator on full operands. This detects wrong
// rules and local tensors that are labeled Replicate but differ.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Throws on every rank of the mesh if replicas of the DTensor differ. Collective. Does nothing for regular tensors.
void check_replicas(const std::string& what, const at::Tensor& tensor);
// Throws unless the full value of `actual` is close to `expected`, a regular tensor. `why` is the cause that the error
// reports. Collective.
void check_parts(const std::string& what, const at::Tensor& actual, const at::Tensor& expected, const std::string& why);

class ResultCheck {
 public:
  // Checks the operands before the call. The arguments are on top of the stack. Collective.
  ResultCheck(const OpEntry& entry, const CachedCall& call, const CallOperands& operands,
              const torch::jit::Stack& stack);
  // Checks the results, on top of the stack, after the call. Throws on every rank of the mesh, with operator and
  // result. Collective.
  void compare(const torch::jit::Stack& stack) const;

 private:
  void compare_full(const std::string& what, const c10::IValue& actual, const c10::IValue& expected) const;

  const OpEntry& entry_;
  const CachedCall& call_;
  bool content_counts_;               // false for operators with uninitialized results (empty, ...)
  torch::jit::Stack full_arguments_;  // the arguments as full, regular tensors; empty: not compared
};

}  // namespace dtensor
