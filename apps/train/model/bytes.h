// Memory of a tensor on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/tensor.h"

namespace train {

// Bytes of the local tensor; 0 for an undefined tensor, and on a rank outside its mesh.
inline std::int64_t local_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  if (!dtensor::is_dtensor(tensor)) return static_cast<std::int64_t>(tensor.nbytes());
  const dtensor::DTensor full(tensor.detach());
  return full.mesh().is_member() ? static_cast<std::int64_t>(full.to_local().nbytes()) : 0;
}

}  // namespace train
