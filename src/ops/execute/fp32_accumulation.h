// Calls under a ReducePolicy whose results are Partial: the local operator runs in a wider type, and each Partial
// result keeps what it was before it was rounded, until it is reduced.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

struct Fp32AccumulationCall {
  at::ScalarType from, to;
  bool view = false;  // moves no elements: nothing to gain unless the operand has unrounded values
  std::vector<SpecPtr> inputs = {}, outputs = {};  // the call's own with the wider type
};

// Null where no result is a Partial sum of a type that the policy carries in another, and where the operator writes.
std::unique_ptr<Fp32AccumulationCall> plan_fp32_accumulation(const OpEntry& entry, const CachedCall& call,
                                                             std::string_view kernel);

bool has_unrounded_operand(const CachedCall& call, const CallView& view);

// The local arguments (from `first` on) in the wider type.
torch::jit::Stack to_accumulation_dtype(const OpEntry& entry, const CachedCall& call, const CallView& view,
                                        const torch::jit::Stack& stack, std::size_t first);

// Replaces wide results by rounded ones; gives the unrounded Partial ones, in order of the outputs.
std::vector<at::Tensor> round_to_result_dtype(const CachedCall& call, torch::jit::Stack& results);
// Of the wrapped results.
void store_unrounded(const std::vector<at::Tensor>& unrounded, const torch::jit::Stack& stack, std::size_t first);

}  // namespace dtensor
