// One call of an operator as the propagation sees it: schema, arguments and the specs of its tensor operands. No data.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

#include "placement/spec.h"

namespace dtensor {

// A tensor argument, or one entry of a tensor list argument. Absent optional tensors are listed too (defined = false).
struct Operand {
  int arg = 0;             // index of the schema argument
  int list_index = -1;     // position in a list argument, else -1
  bool defined = false;
  bool wrapped_number = false;
  SpecPtr spec;            // null for a plain tensor, which counts as Replicate on the call's mesh
  at::DimVector sizes;     // global
  at::DimVector strides;   // global
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  std::int64_t dim() const { return static_cast<std::int64_t>(sizes.size()); }
};

// A returned tensor (or entry of a returned list) as one device would return it.
struct OutputMeta {
  bool defined = true;
  at::DimVector sizes;
  at::DimVector strides;
  std::int64_t offset_delta = 0;  // views: storage offset minus that of the aliased operand
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

struct OpCall {
  const c10::FunctionSchema* schema = nullptr;
  c10::ArrayRef<c10::IValue> args;    // one per schema argument; tensor values are not looked at
  std::vector<Operand> operands;      // in schema order, lists flattened
  std::vector<OutputMeta> outputs;    // flattened; filled by infer_outputs
  MeshRef mesh;                       // of the first operand with a spec (list operators: of that list position)

  // Argument by name; error names the operator if there is none.
  const c10::IValue& arg(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  bool boolean(std::string_view name) const;
  std::vector<std::int64_t> integers(std::string_view name) const;  // int or int[]; empty for None
  // The named int argument as a non-negative dimension of operand 0.
  std::int64_t dim(std::string_view name) const;
};

}  // namespace dtensor
