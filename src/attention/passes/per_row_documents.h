// Both passes if each batch row has its own documents: row by row with separate tiles and exchanges. Ranks that
// exchange keys have the same rows.
#pragma once

#include <vector>

#include "attention/passes/passes.h"

namespace dtensor::attention_impl {

using Documents = std::vector<std::vector<std::int64_t>>;  // of each batch row

// `documents` empty: uses the documents of the scores' pattern, for all rows at once.
Forward forward_per_row(const Scores& scores, const Documents& documents, const SequenceParts& blocks, const Inputs& in,
                        const at::Tensor& sinks);
Backward backward_per_row(const Scores& scores, const Documents& documents, const SequenceParts& blocks,
                          const Inputs& in, const Forward& result, const at::Tensor& grad, const at::Tensor& sinks);

}  // namespace dtensor::attention_impl
