// One call of an operator as the propagation sees it: operator, arguments and the specs of its tensor operands. No
// data.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "dtensor/rule.h"
#include "placement/spec.h"
#include "sharding_prop/operators/op_info.h"

namespace dtensor {

// A tensor argument, or one entry of a tensor list argument. Absent optional tensors are listed too (defined = false).
struct Operand {
  int arg = 0;          // index of the schema argument
  int list_index = -1;  // position in a list argument, else -1
  bool defined = false;
  bool wrapped_number = false;
  bool strided = true;    // a plain tensor may be sparse
  SpecPtr spec;           // null for a plain tensor, which counts as Replicate on the call's mesh
  at::DimVector sizes;    // global
  at::DimVector strides;  // global
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  std::int64_t dim() const { return static_cast<std::int64_t>(sizes.size()); }
};

// Description and arguments are the caller's; they must outlive the call. Rules see it as OpArgs.
struct OpCall : OpArgs {
  const OpInfo* info = nullptr;
  c10::ArrayRef<c10::IValue> args;  // one per schema argument; tensor values are not looked at
  std::vector<Operand> operands;    // in schema order, lists flattened
  // One per return, list returns flattened, in order; returns that are no tensors have an entry with defined = false.
  // Operators that return nothing have none. Filled by infer_outputs.
  std::vector<OutputMeta> outputs;
  bool runs_replicated = false;     // the results' sizes are not known, so that no rule can be bound to them
  bool has_sparse_operand = false;  // a plain operand is sparse, of which no rule speaks
  // Where result 0 will go (the shards of the parameter whose gradient it is); Replicate: no preference. Empty: not
  // known.
  Placements preferred_result;
  MeshRef mesh;  // of the first operand with a spec (list operators: of that list position)
};

}  // namespace dtensor
