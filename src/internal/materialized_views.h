// Whether a view of a DTensor shares memory with its base: what code that writes to local tensors needs to know.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"

namespace dtensor {

// A view whose data a redistribution had to move shares no memory with its base (a narrow along a sharded dimension).
// What an operator (copy_, add_) writes to it reaches the base; what is written to its to_local() does not. False for
// plain tensors.
DTENSOR_API bool is_materialised_view(const at::Tensor& tensor);

}  // namespace dtensor
