// Options of optimizers that are out of their range: a step would go uphill, or divide by zero.
#pragma once

#include <c10/util/Exception.h>

namespace dtensor::optim {

// NaN is neither.
inline void check_not_negative(const char* optimizer, const char* option, double value) {
  TORCH_CHECK_VALUE(value >= 0, optimizer, ": ", option, " must not be negative, and is ", value);
}
inline void check_decay(const char* optimizer, const char* option, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, optimizer, ": ", option, " must be in [0, 1), and is ", value);
}

}  // namespace dtensor::optim
