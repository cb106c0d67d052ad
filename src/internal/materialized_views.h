// Whether a view of a DTensor shares memory with its base, for code that writes to local tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"

namespace dtensor {

// Whether redistribution copied the data of a view (for example a narrow along a sharded dimension), so that it shares
// no memory with its base. Writes by operators (copy_, add_) reach the base; writes to its to_local() do not. False for
// regular tensors.
DTENSOR_API bool is_materialized_view(const at::Tensor& tensor);

}  // namespace dtensor
