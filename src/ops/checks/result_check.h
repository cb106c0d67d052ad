// Checked mode's look at a call: replicas of operands and results are compared with each other, and of each kind of
// call the first, with some later ones, with the same operator on the whole operands. Finds wrong rules and local
// tensors that were labelled Replicate and are not.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Throws, on every rank of the mesh, where ranks that replicate the DTensor hold other values. Collective; nothing for
// plain tensors.
void check_replicas(const std::string& what, const at::Tensor& tensor);
// Throws where the parts of `actual` do not make up `expected`, which is plain; `why` says what is wrong then.
// Collective.
void check_parts(const std::string& what, const at::Tensor& actual, const at::Tensor& expected, const std::string& why);

class ResultCheck {
 public:
  // Before the call; the arguments are on top of the stack. Collective.
  ResultCheck(const OpEntry& entry, const CachedCall& call, const CallView& view, const torch::jit::Stack& stack);
  // After it; the results are. Collective. Throws, naming operator and result, on every rank of the mesh.
  void compare(const torch::jit::Stack& stack) const;

 private:
  void compare_full(const std::string& what, const c10::IValue& actual, const c10::IValue& expected) const;

  const OpEntry& entry_;
  const CachedCall& call_;
  bool content_counts_;               // not of operators whose results hold anything (empty, ...)
  torch::jit::Stack full_arguments_;  // the arguments with plain, whole tensors; empty: not compared
};

}  // namespace dtensor
