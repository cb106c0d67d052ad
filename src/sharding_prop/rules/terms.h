// Terms that several families share: results that look like an operand, leading batch dimensions, dimensions that stay
// whole.
#pragma once

#include <initializer_list>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

// A dimension of one tensor alone, whole and of a size that no other tensor tells.
RuleDim alone(Rule& rule);
RuleTerm all_alone(Rule& rule, std::size_t rank);

// A shard without elements gives results without elements, or zeros: kernels of ATen raise on some.
inline constexpr const char* kSkipEmpty = "skip_empty";

// Operands of `rank` dimensions (and results) share each dimension but those in `whole`, which nobody may shard; others
// are never sharded. Windows of pooling, padding and transforms look along `whole`.
Rule windowed(const OpArgs& op, std::size_t rank, const std::vector<std::int64_t>& whole);

// Operand i has core[i] trailing dimensions of its own; what leads is a batch, broadcast from the right. Results whose
// sizes begin with the batch have it too. core[i] < 0: never sharded.
Rule batched(const OpArgs& op, const std::vector<int>& core);

// Elementwise with broadcasting, but for the dimensions in `whole` of the result.
Rule pointwise_but(const OpArgs& op, const std::vector<std::int64_t>& whole);

// The last `count` dimensions of operand 0.
std::vector<std::int64_t> last_dims(const OpArgs& op, std::size_t count);

// Result i is as operand like[i], contiguous; -1, or false in the bool[] argument `mask`: undefined.
std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask = nullptr);

}  // namespace dtensor
