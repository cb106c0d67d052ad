// Names of dtypes in specs.
#pragma once

#include <c10/core/ScalarType.h>

namespace dtensor {

const char* dtype_abbreviation(c10::ScalarType dtype);  // f32, bf16, i64, ...

}  // namespace dtensor
