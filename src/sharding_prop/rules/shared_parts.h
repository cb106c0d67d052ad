// What several families share: a kernel, spatial dimensions of a padding, and results as rules describe them where
// LibTorch has no meta kernel.
#pragma once

#include <initializer_list>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

// A shard without elements gives results without elements, or zeros: kernels of ATen raise on some.
inline constexpr const char* kSkipEmpty = "skip_empty";

// The rule with factors (as `handled` names them) of which each tensor has a size of its own, and is split by that:
// spatial dimensions that windows go over. Their kernel brings what a rank's part of the result looks at.
Rule elastic(const Rule& rule, std::string_view names);

// The dimensions that a list of amounts, two for each from the last, pads or cuts.
Rule::Dims padded_by(const char* arg);

OutputMeta dense_meta(at::IntArrayRef sizes, c10::ScalarType dtype);  // contiguous
// In the order of memory that one device suggests for operand `like`: that of channels last, where it has it, else
// contiguous.
OutputMeta suggested_meta(const OpArgs& op, at::IntArrayRef sizes, int like = 0);
// The same where the CPU's kernel gives the result; those of other devices give a contiguous one.
OutputMeta suggested_on_cpu(const OpArgs& op, at::IntArrayRef sizes, int like = 0);
// Of operand 0's sizes, and its strides where they are dense, as at::empty_like.
OutputMeta preserved_meta(const OpArgs& op);
OutputMeta undefined_meta();
OutputMeta unknown_meta(c10::ScalarType dtype = c10::ScalarType::Undefined);  // the kernel's own affair

// Whether CUDA's kernels give the results, which for some operators are others than the CPU's.
inline bool is_cuda_call(const OpArgs& op) { return op.device() == c10::DeviceType::CUDA; }

at::DimVector joined(at::IntArrayRef lead, at::IntArrayRef tail);

// Those that the bool[] argument does not ask for become undefined.
std::vector<OutputMeta> masked(const OpArgs& op, const char* mask, std::vector<OutputMeta> metas);
// Result i is as operand like[i], contiguous; -1, or false in the bool[] argument `mask`: undefined.
std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask = nullptr);

}  // namespace dtensor
