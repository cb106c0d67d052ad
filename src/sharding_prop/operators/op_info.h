// Properties of an operator, read once from its schema and tags when it is registered or first used, and the rule that
// it follows.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sharding_prop/rule_book/rule_data.h"

namespace dtensor {

// scalar: a number (Scalar, float) whose value rarely affects the decision, or a list of such numbers.
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
  int arg = -1;        // schema argument that it aliases; -1: none
  bool write = false;  // it is the argument itself (in-place, out=), not a view
};

enum class RuleSource : std::uint8_t { rule, replicate, refuse, none };

// An entry of the rule book.
struct RuleEntry {
  RuleSource source = RuleSource::none;
  Rule constant;  // if `function` is set: the properties of all rules that it returns
  Rule::Function function;
  std::string why;
};
using RuleEntryPtr = std::shared_ptr<const RuleEntry>;

// The rule of one operator. It is never freed: calls on other threads may still read it when the book changes.
struct OpRule {
  RuleEntryPtr entry;         // never null
  std::string derived_from;   // name of the base operator, or empty
  std::uint64_t version = 0;  // version of the book
  bool reads_scalars = true;  // values of float, Scalar and complex arguments are part of a call's cache key
  bool reads_only = false;    // it writes no operand and returns no view, so an operand may be replaced by an equal one
  mutable std::atomic<bool> lacks_meta = false;  // set by the first call that finds no meta kernel

  const RuleData& data() const { return entry->constant.data(); }
};

// Number of changes of the rule book.
inline constinit std::atomic<std::uint64_t> book_version{0};

class OpInfo {
 public:
  explicit OpInfo(const c10::OperatorHandle& handle);

  const c10::FunctionSchema& schema() const { return op.schema(); }
  const c10::OperatorName& name() const { return op.operator_name(); }
  bool writes(int arg) const { return args[static_cast<std::size_t>(arg)].mutated; }
  bool is_out(int arg) const { return args[static_cast<std::size_t>(arg)].out; }
  bool returns_tensors_only() const;

  // The current rule of the book. It takes a lock only if the book has changed since the last call.
  const OpRule& rule() const {
    const OpRule* known = rule_.load(std::memory_order_acquire);
    const bool current = known != nullptr && known->version == book_version.load(std::memory_order_acquire);
    return C10_LIKELY(current) ? *known : find_rule();
  }

  c10::OperatorHandle op;
  std::vector<ArgInfo> args;
  std::vector<ReturnInfo> returns;
  int device_arg = -1;     // index of the argument `device`, or -1
  int generator_arg = -1;  // indices of `generator` and `dtype`, or -1
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

// Whether the library must register a kernel for the operator: it takes tensors and has no composite-implicit kernel.
bool needs_kernel(const c10::OperatorHandle& op);

}  // namespace dtensor
