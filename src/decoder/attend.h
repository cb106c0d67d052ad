// Causal attention of queries that follow the keys before them, in plain ATen.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::nn {

struct AttendOptions {
  double scale = 1, softcap = 0;
  std::int64_t window = 0;
};

// q: [B, H, L, E], the last L of the S tokens; k: [B, G, S, E], v: [B, G, S, F], H a multiple of G. [B, H, L, F]. Keys
// and values of a group are not repeated for its heads.
at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttendOptions& options);

}  // namespace dtensor::nn
