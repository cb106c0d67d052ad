// The rules of operators in a BitIdentical scope (docs/design/bit_identical.md).
#pragma once

#include "sharding_prop/operators/op_call.h"

namespace dtensor {

// The rule of a call in the scope. `ordinary` is its rule outside. Throws if the operator has no bit-identical form.
Rule bit_identical_rule(const OpCall& call, const Rule& ordinary);

// Throws if an operand is Partial, since the shares of a sum depend on the mesh.
void check_bit_identical_operands(const OpCall& call);

}  // namespace dtensor
