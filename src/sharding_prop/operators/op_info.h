// What the library knows of an operator: read off its schema and tags once, when it is registered or first used, and
// the rule that it follows.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {

// scalar: a number whose value seldom matters for the decision (Scalar, float), or a list of such.
enum class ArgKind : std::uint8_t { tensor, tensor_list, scalar, dtype, other };

struct ArgInfo {
  ArgKind kind = ArgKind::other;
  bool mutated = false;  // Tensor(a!)
  bool out = false;      // keyword-only and mutated: out=

  bool holds_tensors() const { return kind == ArgKind::tensor || kind == ArgKind::tensor_list; }
};

struct ReturnInfo {
  bool is_tensor = false;  // or a list of tensors
  bool is_list = false;
  bool is_number = false;
  int arg = -1;        // schema argument that it aliases, -1: fresh
  bool write = false;  // the argument itself (in-place, out=), not a view
};

enum class RuleSource : std::uint8_t { rule, replicate, refuse, none };

// What the book holds under a name.
struct RuleEntry {
  RuleSource source = RuleSource::none;
  Rule constant;  // or, where function is set, the properties that count for each rule it returns
  RuleFunction function;
  std::string why;
};
using RuleEntryPtr = std::shared_ptr<const RuleEntry>;

// What the book says of one operator, found once. Lives for the program: calls on other threads may still read it when
// the book changes.
struct OpRule {
  RuleEntryPtr entry;         // never null
  std::string derived_from;   // name of the base operator, or empty
  std::uint64_t version = 0;  // of the book
  bool reads_scalars = true;  // values of float, Scalar and complex arguments are part of a call's key
  bool reads_only = false;    // nothing written, no view returned: an operand may be exchanged for its equal
  mutable std::atomic<bool> lacks_meta = false;  // found out by the first call

  const RuleData& data() const { return entry->constant.data(); }
};

// How often the book was changed.
inline constinit std::atomic<std::uint64_t> book_version{0};

class OpInfo {
 public:
  explicit OpInfo(const c10::OperatorHandle& handle);

  const c10::FunctionSchema& schema() const { return op.schema(); }
  const c10::OperatorName& name() const { return op.operator_name(); }
  bool writes(int arg) const { return args[static_cast<std::size_t>(arg)].mutated; }
  bool is_out(int arg) const { return args[static_cast<std::size_t>(arg)].out; }
  bool returns_tensors_only() const;

  // The rule of the book, as the book is now. Takes no lock unless the book has changed since the last call.
  const OpRule& rule() const {
    const OpRule* known = rule_.load(std::memory_order_acquire);
    const bool current = known != nullptr && known->version == book_version.load(std::memory_order_acquire);
    return C10_LIKELY(current) ? *known : find_rule();
  }

  c10::OperatorHandle op;
  std::vector<ArgInfo> args;
  std::vector<ReturnInfo> returns;
  int device_arg = -1;     // the argument `device`, where there is one
  int generator_arg = -1;  // and `generator`, `dtype`
  int dtype_arg = -1;
  bool mutates = false;       // in-place or out=
  bool inplace = false;       // writes an operand that it reads
  bool inplace_view = false;  // t_, squeeze_, ...: changes the metadata of its operand
  bool has_out = false;       // takes out=
  bool gives_view = false;
  bool returns_tensor = false;
  bool is_random = false;      // tagged nondeterministic_seeded: advances the world's random counter
  bool dynamic_shape = false;  // tagged dynamic_output_shape

 private:
  const OpRule& find_rule() const;

  mutable std::atomic<const OpRule*> rule_ = nullptr;
};

// Whether the engine has to know the operator: it takes tensors and has no composite-implicit kernel.
bool needs_kernel(const c10::OperatorHandle& op);

}  // namespace dtensor
