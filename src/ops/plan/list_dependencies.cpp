// Detects dependences between positions of list operators. Only redistributed operands matter: positions share the
// local tensors of others.
#include "ops/plan/list_dependencies.h"

#include <ATen/ops/narrow.h>

#include <unordered_map>

#include "ops/dispatch/boxed_kernel.h"
#include "ops/dispatch/for_each_tensor.h"

namespace dtensor {
namespace {

// The list position of each operand; -1 for operands that all positions share.
std::vector<std::int64_t> positions_of_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  std::vector<std::int64_t> positions;
  for_each_operand(entry, args, [&](std::size_t, int position, const c10::IValue&) { positions.push_back(position); });
  return positions;
}

bool moves_any(const CachedCall& call) {
  return std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const InputAction& input) { return input.write_back || !input.plan.empty(); });
}

c10::IValue at_position(const OpEntry& entry, std::size_t arg, const c10::IValue& value, std::size_t k,
                        std::size_t length) {
  if (has_value_per_position(entry, arg, value, length)) {
    return value.toTensor().narrow(0, static_cast<std::int64_t>(k), 1);
  }
  if (!value.isList() || value.toListRef().size() != length) return value;
  const auto all = value.toList();
  auto one = c10::impl::GenericList(all.elementType());
  one.push_back(all.get(k));
  return one;
}

}  // namespace

std::size_t list_argument_length(c10::ArrayRef<c10::IValue> args) {
  std::size_t length = 0;
  for (const auto& arg : args) length = std::max(length, arg.isList() ? arg.toListRef().size() : 0);
  return length;
}

bool has_value_per_position(const OpEntry& entry, std::size_t arg, const c10::IValue& value, std::size_t length) {
  const bool numbers = entry.schema().arguments()[arg].name() == "scalars" && value.isTensor();
  return numbers && value.toTensor().dim() == 1 && value.toTensor().size(0) == static_cast<std::int64_t>(length);
}

bool positions_depend_on_each_other(const OpEntry& entry, const CachedCall& call, const CallOperands& operands,
                                    c10::ArrayRef<c10::IValue> args) {
  const bool in_lists = entry.mutates && entry.foreach_op() && entry.returns.empty();
  if (!in_lists || call.executor == Executor::simple || !moves_any(call)) return false;
  const auto positions = positions_of_operands(entry, args);
  std::unordered_map<const c10::TensorImpl*, std::int64_t> written;
  for (const auto i : call.written) {
    const auto [first, fresh] = written.emplace(operands.tensors[i], positions[i]);
    if (!fresh && first->second != positions[i]) return true;
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto found = positions[i] < 0 ? written.end() : written.find(operands.tensors[i]);
    if (found != written.end() && found->second != positions[i]) return true;
  }
  return false;
}

void run_positions_sequentially(const OpEntry& entry, torch::jit::Stack& stack) {
  const auto args = torch::jit::pop(stack, entry.args.size());
  const auto length = list_argument_length(args);
  for (std::size_t k = 0; k < length; ++k) {
    torch::jit::Stack one;
    for (std::size_t i = 0; i < args.size(); ++i) one.push_back(at_position(entry, i, args[i], k, length));
    run_cached_or_compile(entry, one);
  }
}

}  // namespace dtensor
