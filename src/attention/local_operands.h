// Between DTensors and the passes on local tensors: what this rank has, and what becomes of its results.
#pragma once

#include <ATen/ATen.h>

#include "attention/dtensor_attention.h"
#include "attention/passes/passes.h"
#include "autograd/conversion_nodes.h"
#include "internal/aten_scopes.h"

namespace dtensor::attention_impl {

// What both passes need to know beside the tensors.
struct Setup {
  AttentionLayout layout;
  SpecPtr q, k, v, out;  // as laid out
  Scores scores;         // without the mask
  SequenceParts blocks;
  AttentionOptions options;                          // without the mask and the sinks
  std::vector<std::vector<std::int64_t>> documents;  // of this rank's rows of the batch; empty: those of the pattern
  AxisMask summed = 0;  // axes where gradients of keys and values, which every rank has there, are shares of a sum
};

// `q`, `k` and `v` are laid out. Counts a random operator where there is dropout.
Setup setup_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionLayout layout,
               const AttentionOptions& options);

struct LocalMask {
  at::Tensor values;
  bool has_local_rows = false;
};

// Of a plain mask, or one of the mesh in whatever placements.
LocalMask local_mask(at::Tensor mask, const Setup& setup);

// Up to date; plain tensors as they are.
at::Tensor local_of(const at::Tensor& tensor);
// The last dimension dense, as kernels want it.
at::Tensor last_dense(const at::Tensor& tensor);
// Keys and values gathered where the layout says so.
Inputs local_inputs(const Setup& setup, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec);
// Gradients of keys or values as the passes leave them: brought to where keys wait, summed over the axes that gathered.
at::Tensor key_gradient(const Setup& setup, const at::Tensor& local, const SpecPtr& spec);
// Of queries: each rank's share where it saw its own keys alone.
at::Tensor query_gradient(const Setup& setup, const at::Tensor& local);
at::Tensor sinks_gradient(const Setup& setup, const at::Tensor& local, const SpecPtr& spec);

// [B, H, L, S], true where dropout keeps a weight, laid out as the queries; undefined without dropout.
at::Tensor dropout_mask(const Setup& setup);

}  // namespace dtensor::attention_impl
