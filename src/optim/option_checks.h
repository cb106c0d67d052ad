// Range checks of optimizer options.
#pragma once

#include <c10/util/Exception.h>

namespace dtensor::optim {

// Both checks fail for NaN.
inline void check_not_negative(const char* optimizer, const char* option, double value) {
  TORCH_CHECK_VALUE(value >= 0, optimizer, ": ", option, " must be >= 0, got ", value);
}
inline void check_decay(const char* optimizer, const char* option, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, optimizer, ": ", option, " must be in [0, 1), got ", value);
}

}  // namespace dtensor::optim
