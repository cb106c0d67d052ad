// Helpers shared by several families: a kernel name, padded dimensions, and output metadata for operators that have no
// meta kernel in LibTorch.
#pragma once

#include <initializer_list>
#include <vector>

#include "dtensor/rule.h"

namespace dtensor {

// A local kernel: shards without elements give results without elements, or zeros. Some ATen kernels throw for them.
inline constexpr const char* kSkipEmpty = "skip_empty";

// Marks factors (named by `names`) whose sizes differ between tensors, so that each tensor is split by its own size:
// spatial dimensions that windows slide over. The local kernel exchanges the elements that a rank's windows need.
Rule elastic(const Rule& rule, std::string_view names);

// The dimensions that a list of amounts pads or crops, with two amounts per dimension, from the last one.
Rule::Dims padded_by(const char* arg);

OutputMeta dense_meta(at::IntArrayRef sizes, c10::ScalarType dtype);  // contiguous
// With the memory format that one device suggests for operand `like`: channels last if the operand has it, otherwise
// contiguous.
OutputMeta suggested_meta(const OpArgs& op, at::IntArrayRef sizes, int like = 0);
// The same for results of CPU kernels; other devices return contiguous results.
OutputMeta suggested_on_cpu(const OpArgs& op, at::IntArrayRef sizes, int like = 0);
// Sizes of operand 0, and its strides if they are dense, as in at::empty_like.
OutputMeta preserved_meta(const OpArgs& op);
OutputMeta undefined_meta();
OutputMeta unknown_meta(c10::ScalarType dtype = c10::ScalarType::Undefined);  // the kernel determines the sizes

// Whether CUDA kernels compute the results; for some operators they differ from those of the CPU.
inline bool is_cuda_call(const OpArgs& op) { return op.device() == c10::DeviceType::CUDA; }

at::DimVector joined(at::IntArrayRef lead, at::IntArrayRef tail);

// Results that the bool[] argument does not request become undefined.
std::vector<OutputMeta> masked(const OpArgs& op, const char* mask, std::vector<OutputMeta> metas);
// Result i has the metadata of operand like[i], contiguous. It is undefined for -1, or if the bool[] argument `mask` is
// false.
std::vector<OutputMeta> like_operands(const OpArgs& op, std::initializer_list<int> like, const char* mask = nullptr);

}  // namespace dtensor
