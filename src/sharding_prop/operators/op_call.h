// One call of an operator as sharding propagation sees it: operator, arguments and the specs of its tensor operands,
// without data.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "dtensor/rule.h"
#include "placement/spec.h"
#include "sharding_prop/operators/op_info.h"

namespace dtensor {

// A tensor argument, or one entry of a tensor list argument. Absent optional tensors are included with defined = false.
struct Operand {
  int arg = 0;          // index of the schema argument
  int list_index = -1;  // position in a list argument, else -1
  bool defined = false;
  bool wrapped_number = false;
  bool strided = true;    // false: a regular tensor with a sparse layout
  SpecPtr spec;           // null for a regular tensor, which counts as Replicate on the call's mesh
  at::DimVector sizes;    // global
  at::DimVector strides;  // global
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  std::int64_t dim() const { return static_cast<std::int64_t>(sizes.size()); }
};

// Rules access it as OpArgs. The caller owns `info` and `args`, which must outlive it.
struct OpCall : OpArgs {
  const OpInfo* info = nullptr;
  c10::ArrayRef<c10::IValue> args;  // one per schema argument; tensor values are not read
  std::vector<Operand> operands;    // in schema order, lists flattened
  // One per return in order, with lists flattened. Returns that are not tensors have an entry with defined = false.
  // Empty for operators without returns. Filled by infer_outputs.
  std::vector<OutputMeta> outputs;
  bool runs_replicated = false;     // the sizes of results are unknown, so no rule can be bound
  bool has_sparse_operand = false;  // a regular operand is sparse; rules do not cover it
  // The shards that result 0 will be redistributed to (those of the parameter whose gradient it is). Replicate means no
  // preference; empty means unknown.
  Placements preferred_result;
  std::int64_t block = 0;  // block size of products in a BitIdentical scope; 0 outside
  MeshRef mesh;            // of the first operand with a spec; for list operators, of that list position
};

}  // namespace dtensor
