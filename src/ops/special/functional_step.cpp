// Optimizer steps that return new lists (_fused_adam and its kin): the in-place step on copies. Their lists differ in
// length, which no rule for list positions can say.
#include <ATen/ops/clone.h>

#include "ops/special/special.h"

namespace dtensor {
namespace {

c10::List<at::Tensor> copies_of(const c10::IValue& list) {
  c10::List<at::Tensor> copies;
  for (const at::Tensor& tensor : list.toTensorVector()) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace

void functional_step_special(const OpEntry& entry, torch::jit::Stack& stack) {
  const auto& name = entry.op.operator_name();
  const auto step = c10::Dispatcher::singleton().findSchemaOrThrow((name.name + "_").c_str(), "");
  const auto arguments = torch::jit::pop(stack, entry.args.size());
  torch::jit::Stack call(arguments.begin(), arguments.end());
  std::vector<c10::List<at::Tensor>> results;
  for (std::size_t i = 0; i < call.size(); ++i) {
    const auto* alias = step.schema().arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    results.push_back(copies_of(call[i]));
    call[i] = results.back().copy();
  }
  step.callBoxed(call);
  for (auto& list : results) stack.emplace_back(std::move(list));
}

}  // namespace dtensor
