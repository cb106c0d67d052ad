// Conversion between DTensors and the passes on local tensors: local operands, and gradients as DTensors.
#pragma once

#include <ATen/ATen.h>

#include "attention/dtensor_attention.h"
#include "attention/passes/passes.h"
#include "autograd/conversion_nodes.h"
#include "internal/aten_scopes.h"

namespace dtensor::attention_impl {

// State of both passes besides the tensors.
struct Setup {
  AttentionLayout layout;
  SpecPtr q, k, v, out;  // in the layout's placements
  Scores scores;         // without the mask
  SequenceParts blocks;
  AttentionOptions options;                          // without the mask and the sinks
  std::vector<std::vector<std::int64_t>> documents;  // documents of this rank's batch rows; empty: those of the pattern
  AxisMask summed = 0;  // axes where k and v are replicated but their gradients are Partial
};

// `q`, `k` and `v` are in the layout. Counts a random operator if dropout > 0.
Setup setup_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionLayout layout,
               const AttentionOptions& options);

struct LocalMask {
  at::Tensor values;
  bool has_local_rows = false;
};

// For a regular mask, or a DTensor mask on the mesh with any placements.
LocalMask local_mask(at::Tensor mask, const Setup& setup);

// The local tensor, up to date; regular tensors are returned as they are.
at::Tensor local_of(const at::Tensor& tensor);
// Makes the last dimension dense, as the kernels require.
at::Tensor last_dense(const at::Tensor& tensor);
// Gathers keys and values if the layout requires it.
Inputs local_inputs(const Setup& setup, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec);
// Converts a key or value gradient of the passes: redistributes it to the placements of the keys and sums over axes
// that gather.
at::Tensor key_gradient(const Setup& setup, const at::Tensor& local, const SpecPtr& spec);
// Converts the query gradient; Partial on axes where each rank used its own keys only.
at::Tensor query_gradient(const Setup& setup, const at::Tensor& local);
at::Tensor sinks_gradient(const Setup& setup, const at::Tensor& local, const SpecPtr& spec);

// [B, H, L, S] with the placements of the queries, true where dropout keeps a weight; undefined without dropout.
at::Tensor dropout_mask(const Setup& setup);

}  // namespace dtensor::attention_impl
