// Attention of DTensors: redistributes the operands to the chosen layout, runs the passes on local tensors and creates
// the autograd node.
#pragma once

#include <functional>
#include <string>

#include "attention/strategy.h"

namespace dtensor::attention_impl {

// The name under which attention communicates in forward and backward.
const std::string& attention_call_name();

// Throws with the values if sizes, types or options are inconsistent. The same on all ranks.
void check_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options);

// Whether tiles of these operands have a flash kernel, if no mask applies. CPU: any floating type. CUDA: half types
// with equally many features for keys and values, a multiple of 8 up to 256.
bool has_flash_kernel(const at::Tensor& q, const at::Tensor& v);

// The mesh axes that shard the sequence of the operands; 0 if no operand is a DTensor.
AxisMask sequence_axes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// The redistribution of operands before the computation.
InputMoves input_moves_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options, AttentionStrategy strategy);

// Start positions of a row's documents, without padding. `row`: int64 on the CPU, contiguous.
std::vector<std::int64_t> documents_of_row(const at::Tensor& row, std::int64_t length);

// The pattern of visible keys; the window is at most the sequence length.
Pattern pattern_of(const AttentionOptions& options, const Operands& operands);

// A cached forward result for recomputation: the DTensor before the ulysses exchange back to the sequence, and the
// local log-sum-exp (with row maxima if they are stored separately).
struct CachedForward {
  std::function<bool(at::Tensor& out, at::Tensor& lse)> take = {};  // false: not cached, compute it
  std::function<void(const at::Tensor& out, const at::Tensor& lse)> keep = {};
};

// At least one operand is a DTensor on a CPU mesh, or on a CUDA mesh with operands that have a flash kernel; regular
// tensors count as Replicate. `text`, if given, receives the strategies and their costs. `shown`: dispatch modes see
// the operator of one device. Collective over the mesh.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                  AttentionStrategy strategy, std::string* text, const CachedForward& kept = {}, bool shown = false);

// Attention with ATen operators, for regular tensors or DTensors. `kept`: [B, H, L, S], true where dropout keeps a
// weight; undefined: uses at::dropout.
at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionOptions& options, const at::Tensor& kept = {});

// Attention as ATen's operator with one mask, which has a bit-identical form. Sinks, dropout and masks with gradients
// use the reference.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionOptions& options);

}  // namespace dtensor::attention_impl
