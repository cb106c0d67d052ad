// Proving sharding rules by trial, without a communicator: the operands of a call are cut as each strategy that the
// operator's rule offers asks, the plain operator runs on the parts rank by rank in this thread, and what it gives is
// put together and compared with one device.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// What a rule offers for one call on a one-dimensional mesh, against what is true.
struct RuleReport {
  // False: the engine takes the operator apart itself, and no rule decides it.
  bool by_rule = true;
  // Strategies that the rule offers; those that hold; those that a local kernel carries out, which only ranks can run.
  int offered = 0, sound = 0, by_kernel = 0;
  // Offered and wrong: operands, results, and what differs. True and not offered (search only): placements of the
  // operands, "[S(0)], [R]".
  std::vector<std::string> unsound = {}, missing = {};
  // For operands split by their first and by their last dimension: bytes moved over the least.
  std::vector<double> bytes = {};
};

// Tries the rule of `op` ("my::scale_rows", "aten::add.Tensor": with its overload) on the call `args` (plain CPU
// tensors and whatever else the schema asks for, in its order, defaults filled in; not changed) for `ranks` ranks.
// `search`: looks for what is not offered as well. That runs the operator on parts which do not belong together, and a
// kernel that does not check its operands may write past its results then: do it in a process that may die. Throws
// where the call itself does.
DTENSOR_API RuleReport verify_rule(const std::string& op, const std::vector<c10::IValue>& args, std::int64_t ranks,
                                   bool search = false);

// The decisions on a mesh of several dimensions for `tries` placements of the operands, drawn alike each time; the
// wrong ones as text.
DTENSOR_API std::vector<std::string> verify_rule_on_mesh(const std::string& op, const std::vector<c10::IValue>& args,
                                                         at::IntArrayRef mesh_shape, int tries = 8);

}  // namespace dtensor
