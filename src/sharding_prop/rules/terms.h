// What several families share: kernels, places of a padding, results that look like an operand.
#pragma once

#include <initializer_list>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

// A shard without elements gives results without elements, or zeros: kernels of ATen raise on some.
inline constexpr const char* kSkipEmpty = "skip_empty";

// The dimensions that a list of amounts, two for each from the last, pads or cuts.
Rule::Dims padded_by(const char* arg);

// Result i is as operand like[i], contiguous; -1, or false in the bool[] argument `mask`: undefined.
std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask = nullptr);

}  // namespace dtensor
