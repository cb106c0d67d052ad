// Every operator of ATen that writes to a list of tensors bumps the versions of the tensors it writes, so that autograd
// detects changed saved tensors. The operators are those of the dispatcher; the arguments are made from their types.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "dtensor/dtensor.h"
#include "dtensor/launch.h"
#include "internal/materialized_views.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor::test {
namespace {

using torch::jit::Stack;

bool writes_list(const c10::Argument& arg) {
  return arg.alias_info() != nullptr && arg.alias_info()->isWrite() && arg.type()->kind() == c10::TypeKind::ListType;
}

// Operators that do not run on a CPU or on strided tensors.
bool runs_here(const std::string& name) {
  for (const char* elsewhere : {"rnn", "lstm", "quantize"}) {
    if (name.find(elsewhere) != std::string::npos) return false;
  }
  return name.starts_with("aten::") && !name.starts_with("aten::_histogramdd");
}

std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !runs_here(name.name)) continue;
    const auto& args = op->schema().arguments();
    if (std::any_of(args.begin(), args.end(), writes_list)) found.push_back(*op);
  }
  return found;
}

// The possible value of an argument in one attempt at a call.
struct Draft {
  at::ScalarType type = at::kFloat;
  std::int64_t outs = 2;  // Number of tensors in out=.
  at::DimVector out_sizes{4, 2};
  std::function<at::Tensor(const at::Tensor&)> place;

  at::Tensor tensor(at::IntArrayRef sizes) const { return place(at::ones(sizes, type)); }
};

c10::IValue list_of(const Draft& draft, const c10::Argument& arg) {
  c10::List<at::Tensor> list;
  const bool number = arg.name() == "state_steps";
  for (std::int64_t i = 0; i < (arg.kwarg_only() ? draft.outs : 2); ++i) {
    list.push_back(number ? at::ones({}, at::kFloat)
                          : draft.tensor(arg.kwarg_only() ? draft.out_sizes : at::DimVector{4, 2}));
  }
  return list;
}

c10::IValue single(const Draft& draft, const c10::Argument& arg) {
  if (arg.name() == "lr") return at::ones({}, at::kDouble);
  if (arg.name() == "scalars") return at::ones({2});
  if (arg.name() == "found_inf" || arg.name() == "inv_scale") return at::ones({1});
  if (arg.name() == "self") return draft.tensor({4, 2});
  return draft.tensor({});
}

c10::IValue list_of_numbers(const c10::Argument& arg) {
  const auto element = arg.type()->expectRef<c10::ListType>().getElementType();
  if (element->kind() == c10::TypeKind::NumberType) return std::vector<at::Scalar>{1.0, 1.0};
  if (element->kind() == c10::TypeKind::FloatType) return std::vector<double>{1.0, 1.0};
  return std::vector<std::int64_t>{2, 2};
}

c10::IValue value_of(const Draft& draft, const c10::Argument& arg) {
  if (arg.default_value()) return *arg.default_value();
  switch (arg.type()->kind()) {
    case c10::TypeKind::TensorType:
      return single(draft, arg);
    case c10::TypeKind::ListType:
      if (arg.type()->isSubtypeOf(*c10::ListType::ofTensors())) return list_of(draft, arg);
      return list_of_numbers(arg);
    case c10::TypeKind::BoolType:
      return arg.name() == "amsgrad";
    case c10::TypeKind::FloatType:
      return 0.5;
    case c10::TypeKind::NumberType:
      return at::Scalar(1.0);
    case c10::TypeKind::OptionalType:
      return {};
    default:
      return std::int64_t{arg.name() == "dim" ? 0 : arg.name() == "split_size" ? 2 : 1};
  }
}

Stack arguments(const c10::OperatorHandle& op, const Draft& draft) {
  Stack stack;
  for (const auto& arg : op.schema().arguments()) stack.push_back(value_of(draft, arg));
  return stack;
}

// The attempts; most operators accept one of them. Results are one per chunk of `self`, one per row, or one per scalar.
std::vector<Draft> drafts() {
  std::vector<Draft> all;
  for (const auto type : {at::kFloat, at::kLong}) {
    all.push_back({type, 2, {4, 2}, {}});
    all.push_back({type, 2, {2, 2}, {}});
    all.push_back({type, 4, {2}, {}});
    all.push_back({type, 2, {}, {}});
  }
  return all;
}

std::vector<at::Tensor> written(const c10::OperatorHandle& op, const Stack& call) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < call.size(); ++i) {
    if (!writes_list(op.schema().arguments()[i])) continue;
    for (const at::Tensor& t : call[i].toTensorVector()) tensors.push_back(t);
  }
  return tensors;
}

std::vector<std::vector<std::int64_t>> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::int64_t>> sizes;
  for (const at::Tensor& t : tensors) sizes.push_back(t.sizes().vec());
  return sizes;
}

// The arguments with which the operator runs on regular tensors; its out= tensors have the sizes of the results. Empty
// if the operator rejects regular tensors too.
std::optional<Draft> draft_that_fits(const c10::OperatorHandle& op) {
  for (Draft draft : drafts()) {
    draft.place = [](const at::Tensor& t) { return t; };
    try {
      const auto call = arguments(op, draft);
      const auto sizes = sizes_of(written(op, call));
      auto stack = call;
      op.callBoxed(stack);
      if (sizes_of(written(op, call)) == sizes) return draft;
    } catch (const std::exception&) {
    }
  }
  return std::nullopt;
}

void expect_raised(const c10::OperatorHandle& op, Draft draft, const DeviceMesh& mesh, const Placement& placement) {
  draft.place = [&](const at::Tensor& t) -> at::Tensor {
    return distribute_tensor(t, mesh, {placement.is_shard() && t.dim() == 0 ? Placement(Replicate()) : placement});
  };
  const auto call = arguments(op, draft);
  std::vector<std::uint32_t> before;
  for (const auto& t : written(op, call)) before.push_back(t._version());
  auto stack = call;
  op.callBoxed(stack);
  const auto after = written(op, call);
  ASSERT_FALSE(after.empty());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_GT(after[i]._version(), before[i]) << op.schema() << " " << placement.str() << ", tensor " << i;
  }
}

TEST(ListVersions, EveryOperatorThatWritesToAListBumpsVersions) {
  int called = 0;
  std::set<std::string> refused;
  for (const auto& op : operators()) {
    const auto draft = draft_that_fits(op);
    draft ? ++called : (refused.insert(c10::toString(op.operator_name())), 0);
    if (!draft) continue;
    run_local(2, [&](Communicator world) {
      const auto mesh = init_device_mesh(world, at::kCPU, {2});
      for (const Placement& p : {Placement(Shard(0)), Placement(Replicate())}) expect_raised(op, *draft, mesh, p);
    });
  }
  EXPECT_GT(called, 150);
  EXPECT_EQ(refused, std::set<std::string>{});
}

// A regular tensor in a list of DTensors, and a rank that is outside the mesh of the written tensors.
TEST(ListVersions, RegularTensorsAndRanksOutsideTheMeshAreBumped) {
  run_local(2, [](Communicator world) {
    const auto first = device_mesh(world, at::kCPU, {0}, {1});
    const at::Tensor placed = at::alias(distribute_tensor(at::ones({4, 2}), first, {Shard(0)})),
                     regular = at::ones({4, 2});
    at::_foreach_add_({placed, regular}, 1);
    EXPECT_EQ(placed._version(), 1);
    EXPECT_GT(regular._version(), 0);
  });
}

TEST(ListVersions, ChangedSavedTensorIsBackwardError) {
  run_local(2, [](Communicator world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    at::Tensor x = distribute_tensor(at::ones({4, 2}), mesh, {Shard(0)});
    x.requires_grad_();
    const auto loss = (x * x).sum();
    {
      const at::NoGradGuard no_grad;
      at::_foreach_mul_({x}, 2);
    }
    EXPECT_THROW(loss.backward(), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor::test
