// Causal attention of queries that follow the keys before them, in plain ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/comm.h"

namespace dtensor::nn {

struct AttendOptions {
  double scale = 1, softcap = 0;
  std::int64_t window = 0;
};

// q: [B, H, L, E], the last L of the S tokens; k: [B, G, S, E], v: [B, G, S, F], H a multiple of G. [B, H, L, F]. Keys
// and values of a group are not repeated for its heads.
at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttendOptions& options);

// The same where token p's key and value are with rank p % n of `sequence_group` (n ranks) alone: k and v are this
// rank's. Queries are the tokens from `first` on, on every rank alike, and so is the result. One all_gather. Of each
// rank's keys the largest score m, the sum s of exp(score - m) and the values y weighted so make the whole (Dao et al.,
// FlashAttention, 2022): with M = max m, sum exp(m - M) y / sum exp(m - M) s.
at::Tensor attend_split_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t first,
                              const Communicator& sequence_group, const AttendOptions& options);

}  // namespace dtensor::nn
