// The coverage table: what becomes of each aten operator that is called on a DTensor.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace dtensor::coverage {

enum class Kind {
  implicit,        // decomposed by ATen before it arrives
  rule,            // a sharding rule of its own, or of its tag
  derived,         // by schema from another operator's entry
  special_kernel,  // taken over as a whole (src/ops/local_kernels/special)
  replicate,       // on gathered operands, for the reason given
  refuse,          // an error, for the reason given
  factory,         // no tensor operand: plain, or born on a mesh in a MeshScope
  none,            // no entry: runs replicated with a warning
};

struct Entry {
  std::string op;  // aten::add.Tensor
  Kind kind = Kind::none;
  std::string text;         // the rule's source, the reason, or the operator that it derives from
  bool replicated = false;  // by itself or by what it derives from
  bool refused = false;
};

// One entry per overload of the namespace, by name.
std::vector<Entry> table(const std::string& name_space = "aten");
std::string name_of(Kind kind);
// docs/coverage.md up to what is written there by hand, which begins with this line.
std::string page(const std::vector<Entry>& entries);
inline constexpr const char* kHandWrittenSection = "\n## Compared from Python\n";

}  // namespace dtensor::coverage
