// Deduplicates lists of tensors, and tracks parameters that were replaced by other tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/tensor.h"

namespace dtensor {

// The tensors without duplicates, in order of first occurrence. A list of parameters may contain a tied one several
// times.
DTENSOR_API std::vector<at::Tensor> unique_tensors(at::TensorList tensors);

// Call it when another tensor replaces a parameter of a model, so that an optimizer that holds the former one throws.
DTENSOR_API void record_parameter_swap(const at::Tensor& former);
DTENSOR_API void record_parameter_swap(const at::Tensor& former, const at::Tensor& by);
DTENSOR_API bool is_swapped_out(const at::Tensor& tensor);
// Grows with every replacement.
DTENSOR_API std::uint64_t parameter_swap_count();

// Retied parameters: if one name of a tied tensor was replaced and another name still has the former tensor, both get
// the replacement. Models may be distributed piece by piece. Throws if two names have different replacements.
DTENSOR_API void retie_shared_parameters(const NamedTensors& tensors);

}  // namespace dtensor
