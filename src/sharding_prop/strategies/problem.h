// A rule meets the sizes of one call: factors with sizes, and per tensor the factors of each dimension. What strategies
// are made from.
#pragma once

#include "sharding_prop/operators/op_call.h"
#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {

// The term of a tensor; null: it has none.
const Term* term_for(const std::vector<Term>& terms, std::size_t index);

struct FactorState : Factor {
  bool even = false;        // major part of a compound dimension somewhere: parts must be equal
  bool contracted = false;  // absent from a result
};

struct TensorState {
  bool used = false;  // defined, and its dimensions may be sharded
  bool once = false;
  bool absent = false;
  RuleTerm dims;
  std::int64_t rank = 0;

  bool has(int factor) const {
    return std::any_of(dims.begin(), dims.end(),
                       [&](const RuleDim& dim) { return std::find(dim.begin(), dim.end(), factor) != dim.end(); });
  }
};

struct OperandState : TensorState {
  const Operand* operand = nullptr;
  SpecPtr spec;  // as the rule sees it (storage shards as Replicate where it says so); null: passed on as it is
  bool written = false;
  bool ignored = false;  // given as it is
  bool out = false;      // written, not read: takes the result's placements
  int out_result = -1;
};

struct ResultState : TensorState {
  const OutputMeta* meta = nullptr;
  int alias = -1;                  // operand that it is (in-place, out=)
  bool always_replicated = false;  // the rule says that it is Replicate whatever is sharded
  std::uint32_t reads = ~0u;       // bit i: it is computed of operand i
};

struct Problem {
  const OpCall* call = nullptr;
  Rule rule;
  const RuleData* data = nullptr;
  MeshRef mesh;
  bool pinned = true;  // written operands keep their placements where a strategy allows it
  StorageView storage = StorageView::replicate;
  c10::SmallVector<FactorState, 8> factors;
  std::vector<OperandState> operands;
  std::vector<ResultState> results;

  at::IntArrayRef mesh_shape() const { return mesh->layout.shape; }
};

// Fills factors and dims from the terms of `problem.rule`; operands and results must be listed. Factors whose sizes
// disagree between tensors become whole; dimensions of size 1 that meet a larger factor are not sharded.
void bind_rule(Problem& problem);

}  // namespace dtensor
