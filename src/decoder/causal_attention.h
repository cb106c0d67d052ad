// Causal attention of queries after previous tokens, in regular ATen calls.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/comm.h"

namespace dtensor::nn {

struct AttendOptions {
  double scale = 1, softcap = 0;
  std::int64_t window = 0;
  at::Tensor documents = {};  // begins of each row's documents, as AttentionOptions::row_cu_seqlens; may be undefined
};

// q: [B, H, L, E], the last L of the S tokens; k: [B, G, S, E], v: [B, G, S, F], H a multiple of G. Returns [B, H, L,
// F]. Keys and values of a group are not repeated for its heads.
at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttendOptions& options);

// The same for keys and values that are sharded cyclically: k and v are local, with token p on rank p % n of
// `sequence_group` (n ranks). Queries are the tokens from `first` on, replicated, and so is the result. One all_gather.
// Each rank contributes its largest score m, the sum s of exp(score - m), and the values y with these weights. They
// combine as in FlashAttention (Dao et al., 2022): with M = max m, sum exp(m - M) y / sum exp(m - M) s.
at::Tensor attend_split_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t first,
                              const Communicator& sequence_group, const AttendOptions& options);

}  // namespace dtensor::nn
