// Which dtype a parameter is computed with in.
#pragma once

#include <string>

#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

at::ScalarType compute_dtype(const MixedPrecision& precision, const std::string& name, at::ScalarType own);

// The unit of a parameter, and its place there; null: none.
FsdpUnit::Impl* unit_of(const at::Tensor& tensor, std::size_t& k);

}  // namespace dtensor::fsdp
