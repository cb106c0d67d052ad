// Which dtype a parameter is computed with in.
#pragma once

#include <string>

#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

at::ScalarType compute_dtype(const MixedPrecision& precision, const std::string& name, at::ScalarType own);

}  // namespace dtensor::fsdp
