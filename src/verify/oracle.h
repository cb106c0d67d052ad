// Verifies rules by trial. It slices the inputs of a sample as a decision requires and runs the operator on regular
// tensors rank by rank in this thread. It then assembles the results according to the decision and compares them with
// one device. It needs no communicator. Summands of Partials differ between ranks and have mixed signs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "sharding_prop/propagate.h"

namespace dtensor {

// One call on regular tensors; its arguments are not changed.
struct Sample {
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;
};

// The call on a mesh of this shape, as seen by `rank`. placements[i] belongs to operand i; empty means a regular
// tensor.
struct MeshCall {
  std::vector<c10::IValue> args;
  OpCall call;
};
MeshCall mesh_call(const Sample& sample, at::IntArrayRef mesh_shape, std::int64_t rank,
                   const std::vector<Placements>& placements);

// Operands of the sample in schema order with lists flattened; undefined if absent.
std::vector<at::Tensor> sample_operands(const Sample& sample);

// The sample's arguments with its operands replaced by other tensors.
std::vector<c10::IValue> with_tensors(const Sample& sample, const std::vector<at::Tensor>& tensors);

// Whether the operand may be a DTensor; a wrapped number stays a regular tensor.
bool is_placed(const at::Tensor& operand);

// The tensors that the operator returns for copies of other operands.
std::vector<at::Tensor> results_of(const Sample& sample, const std::vector<at::Tensor>& operands);

// Whether operands, results and written operands are finite.
bool has_finite_results(const Sample& sample);

struct Verdict {
  enum class Kind { sound, unsound, needs_kernel, refused };
  Kind kind = Kind::sound;
  std::string text;  // the decision, and the difference
};

// Verifies the decision of propagate() for these placements.
Verdict verify_decision(const Sample& sample, at::IntArrayRef mesh_shape, const std::vector<Placements>& placements);

// Verifies the strategy that `chooser` selects.
Verdict verify_strategy(const Sample& sample, at::IntArrayRef mesh_shape, const std::vector<Placements>& placements,
                        const Chooser& chooser);

// Verifies all strategies that are offered on a one-dimensional mesh of `ranks`, regardless of cost.
std::vector<Verdict> verify_all_strategies(const Sample& sample, std::int64_t ranks);

// Selects the k-th candidate of the first mesh axis, or the last one. Sets `count` to at least the number of
// candidates.
Chooser nth_candidate(std::size_t k, std::size_t& count);

// The local tensor of a rank; assemble_parts is the inverse. `seed` varies the summands of Partials.
at::Tensor part_of_rank(const at::Tensor& full, const Placements& placements, at::IntArrayRef mesh_shape,
                        std::int64_t rank, std::uint64_t seed);
bool all_finite(const at::Tensor& tensor);
// Equal up to rounding of the type; exactly equal for integers. NaN equals NaN.
bool same_values(const at::Tensor& a, const at::Tensor& b);
// Throws with the reason if the parts do not match the placements.
at::Tensor assemble_parts(const std::vector<at::Tensor>& parts, at::IntArrayRef sizes, const Placements& placements,
                          at::IntArrayRef mesh_shape);

}  // namespace dtensor
