// The coverage table: how each aten operator runs on DTensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace dtensor::coverage {

enum class Kind {
  implicit,        // Decomposed by ATen.
  rule,            // A sharding rule of the operator or of its tag.
  derived,         // By schema from another operator's entry.
  special_kernel,  // Handled by a special kernel (src/ops/local_kernels/special).
  replicate,       // On replicated operands, for the reason given.
  refuse,          // An error, for the reason given.
  factory,         // No tensor operand: creates regular tensors, or DTensors in a MeshScope.
  none,            // No entry: runs on replicated operands, with a warning.
};

struct Entry {
  std::string op;  // for example aten::add.Tensor
  Kind kind = Kind::none;
  std::string text;         // The rule string, the reason, or the operator that it derives from.
  bool replicated = false;  // Directly or by the operator that it derives from.
  bool refused = false;
};

// One entry for each overload of the namespace, by name.
std::vector<Entry> table(const std::string& name_space = "aten");
std::string name_of(Kind kind);
// docs/coverage.md up to its manual section, which begins with this line.
std::string page(const std::vector<Entry>& entries);
inline constexpr const char* kHandWrittenSection = "\n## Compared from Python\n";

}  // namespace dtensor::coverage
