// One pass over a call's arguments: the cache key and the tensor operands. The key holds, per argument, the interned spec
// of a DTensor, the description of a plain tensor, or the value of anything else (floats only where the rule reads them).
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "ops/op_entry.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

using CallKey = c10::SmallVector<std::uint64_t, 40>;

struct CallView {
  CallKey key;
  c10::SmallVector<c10::TensorImpl*, 8> operands;  // flattened; null: absent
  const MeshInfo* mesh = nullptr;                  // of the first DTensor
  bool has_plain = false;                          // a plain operand of dimension >= 1

  CallView(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

 private:
  void add_tensor_value(const c10::IValue& value);
  void add_tensor(c10::TensorImpl* impl);
};

std::uint64_t hash_key(c10::ArrayRef<std::uint64_t> key);

}  // namespace dtensor
