// Operators of torch.distributed refuse DTensors before anything is sent, with an error that names the alternative.
#include <gtest/gtest.h>

#include "ops/dispatch/operator_entry.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

const std::set<std::string_view> kLibraries = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"};

std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && kLibraries.contains(name.getNamespace().value_or("")) && needs_kernel(*op)) found.push_back(*op);
  }
  return found;
}

// Passes `tensor` for each tensor argument; the other arguments are not read.
torch::jit::Stack arguments(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  torch::jit::Stack stack;
  for (const ArgInfo& arg : entry_of(op).args) {
    stack.emplace_back(arg.kind == ArgKind::tensor ? c10::IValue(tensor) : c10::IValue());
    if (arg.kind == ArgKind::tensor_list) stack.back() = c10::List<at::Tensor>({tensor});
  }
  return stack;
}

std::string error_of(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  torch::jit::Stack stack = arguments(op, tensor);
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TorchDistributedTest, OperatorsRefuseDTensors) {
  const auto ops = operators();
  EXPECT_GT(ops.size(), 40u);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    for (const auto& op : ops) {
      for (const Placement p : {Placement(Shard(0)), Placement(Replicate()), Placement(Partial())}) {
        const auto text = error_of(op, DTensor::from_local(at::ones({2}), mesh, {p}));
        EXPECT_NE(text.find("full_tensor()"), std::string::npos) << op.operator_name() << ": " << text;
        EXPECT_NE(text.find("[" + to_string(Placements{p}).substr(1)), std::string::npos) << text;
      }
    }
  });
}

}  // namespace
}  // namespace dtensor::test
