// Attention of DTensors: brings the operands to the layout that was chosen, runs the passes on the local tensors and
// hangs a node into autograd's graph.
#pragma once

#include <functional>
#include <string>

#include "attention/strategy.h"

namespace dtensor::attention_impl {

// For whom attention communicates, forward and backward.
const std::string& attention_call_name();

// Throws with the values unless sizes, types and options fit each other. The same on every rank.
void check_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options);

// The axes that split the sequence of the operands; 0 where none of them is a DTensor.
AxisMask sequence_axes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// What the call moves before it begins.
InputMoves input_moves_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options, AttentionStrategy strategy);

// Positions where a row's documents begin, without what fills it up. `row`: int64 on the CPU, contiguous.
std::vector<std::int64_t> documents_of_row(const at::Tensor& row, std::int64_t length);

// A window that is longer than the sequence is one as long as it.
Pattern pattern_of(const AttentionOptions& options, const Operands& operands);

// A result that is kept, to be given out where the same call runs again: the DTensor before heads go back to the
// sequence, and the local log-sum-exp (with the rows' tops, where some are apart).
struct CachedForward {
  std::function<bool(at::Tensor& out, at::Tensor& lse)> take = {};  // false: compute it
  std::function<void(const at::Tensor& out, const at::Tensor& lse)> keep = {};
};

// At least one operand is a DTensor of a mesh of CPUs; plain ones count as Replicate. `text`, if given, receives the
// strategies and their prices. `shown`: dispatch modes see the operator that one device runs. Collective over the mesh.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                  AttentionStrategy strategy, std::string* text, const CachedForward& kept = {}, bool shown = false);

// The same by plain ATen, of plain tensors or DTensors. `kept`: [B, H, L, S], true where dropout keeps a weight;
// undefined: at::dropout draws.
at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionOptions& options, const at::Tensor& kept = {});

}  // namespace dtensor::attention_impl
