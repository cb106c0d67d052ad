// The proof of rules by trial: slice the inputs of a sample as a decision asks, run the plain operator rank by rank in
// this thread, put the parts of the results together as the decision says and compare with one device. Needs no
// communicator. Partials are unequal and of mixed sign.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "sharding_prop/propagate.h"

namespace dtensor {

// One call on plain tensors; the arguments are not changed.
struct Sample {
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;
};

// The call on a mesh of this shape, seen from `rank`; placements[i] of the i-th operand (empty: plain).
struct MeshCall {
  std::vector<c10::IValue> args;
  OpCall call;
};
MeshCall mesh_call(const Sample& sample, at::IntArrayRef mesh_shape, std::int64_t rank,
                   const std::vector<Placements>& placements);

// Operands of the sample in schema order, lists flattened; undefined where absent.
std::vector<at::Tensor> sample_operands(const Sample& sample);

// The sample's arguments with other tensors in place of its operands.
std::vector<c10::IValue> with_tensors(const Sample& sample, const std::vector<at::Tensor>& tensors);

// Whether a mesh may hold the operand: a number stays plain.
bool is_placed(const at::Tensor& operand);

// The tensors that the plain operator returns for other operands, of which it gets copies.
std::vector<at::Tensor> results_of(const Sample& sample, const std::vector<at::Tensor>& operands);

// Whether operands and results, and what is written, are finite.
bool has_finite_results(const Sample& sample);

struct Verdict {
  enum class Kind { sound, unsound, needs_kernel, refused };
  Kind kind = Kind::sound;
  std::string text;  // decision, and what differs
};

// The decision of propagate() for these placements.
Verdict verify_decision(const Sample& sample, at::IntArrayRef mesh_shape, const std::vector<Placements>& placements);

// The strategy that the chooser takes.
Verdict verify_strategy(const Sample& sample, at::IntArrayRef mesh_shape, const std::vector<Placements>& placements,
                        const Chooser& chooser);

// Every strategy that is offered on a one-dimensional mesh of `ranks`, whatever it costs.
std::vector<Verdict> verify_all_strategies(const Sample& sample, std::int64_t ranks);

// Takes the k-th candidate of the first mesh axis, or the last one; raises `count` to how many there are.
Chooser nth_candidate(std::size_t k, std::size_t& count);

// What a rank holds of a tensor, and the inverse. `seed` varies the contributions of Partials.
at::Tensor part_of_rank(const at::Tensor& full, const Placements& placements, at::IntArrayRef mesh_shape,
                        std::int64_t rank, std::uint64_t seed);
bool all_finite(const at::Tensor& tensor);
// Equal but for the rounding of the type; of whole numbers, equal. NaN equals NaN.
bool same_values(const at::Tensor& a, const at::Tensor& b);
// Throws with the reason where the parts do not fit the placements.
at::Tensor assemble_parts(const std::vector<at::Tensor>& parts, at::IntArrayRef sizes, const Placements& placements,
                          at::IntArrayRef mesh_shape);

}  // namespace dtensor
