// Binds a rule to the sizes of one call: factors with sizes, and the factors of each tensor dimension. Strategies are
// derived from this.
#pragma once

#include "sharding_prop/operators/op_call.h"
#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {

// The term of a tensor; null if it has none.
const Term* term_for(const std::vector<Term>& terms, std::size_t index);

struct FactorState : Factor {
  bool even = false;        // major part of a compound dimension: its parts must be equal
  bool contracted = false;  // absent from a result
};

struct TensorState {
  bool used = false;  // defined, and its dimensions may be sharded
  bool once = false;
  bool absent = false;
  Rule::Term dims;
  std::int64_t rank = 0;

  bool has(int factor) const {
    return std::any_of(dims.begin(), dims.end(), [&](const Rule::DimFactors& dim) {
      return std::find(dim.begin(), dim.end(), factor) != dim.end();
    });
  }
};

struct OperandState : TensorState {
  const Operand* operand = nullptr;
  // The spec as the rule reads it (storage shards may be Replicate); null: the operand is passed unchanged.
  SpecPtr spec;
  bool written = false;
  bool ignored = false;  // passed unchanged
  bool out = false;      // written but not read: has the result's placements
  int out_result = -1;
};

struct ResultState : TensorState {
  const OutputMeta* meta = nullptr;
  int alias = -1;                  // operand that it is (in-place, out=); -1: none
  bool always_replicated = false;  // the rule defines it as Replicate
  std::uint32_t reads = ~0u;       // bit i: it depends on operand i
};

struct BoundRule {
  const OpCall* call = nullptr;
  Rule rule;
  const RuleData* data = nullptr;
  MeshRef mesh;
  bool pinned = true;  // written operands keep their placements if a strategy allows it
  StorageView storage = StorageView::replicate;
  c10::SmallVector<FactorState, 8> factors;
  std::vector<OperandState> operands;
  std::vector<ResultState> results;

  at::IntArrayRef mesh_shape() const { return mesh->layout.shape; }
};

// Fills factors and dims from the terms of `bound.rule`; operands and results must be set. Factors whose sizes differ
// between tensors become unsharded. Dimensions of size 1 that broadcast to a larger factor are not sharded.
void bind_rule(BoundRule& bound);

}  // namespace dtensor
