// Element-wise losses with a mean over the whole batch (mse, smooth_l1, huber, binary cross entropy, soft margin):
// ranks sum their part and divide by the global count, forward and backward, so uneven and empty shards weigh as they
// should (PITFALLS C1, C2). Half types are summed in float.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

// The operator's overload that returns fresh tensors, and its arguments on a stack of their own.
struct Functional {
  c10::OperatorHandle op;
  torch::jit::Stack stack;
};

Functional functional_of(const LocalCall& call) {
  const auto& schema = call.info.schema();
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(schema.name().c_str(), "");
  const auto given = torch::jit::last(call.stack, schema.arguments().size());
  return {op, torch::jit::Stack(given.begin(), given.begin() + op.schema().arguments().size())};
}

void widen_halves(torch::jit::Stack& stack) {
  for (auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto type = value.toTensor().scalar_type();
    if (accumulate_type(type) != type) value = value.toTensor().to(accumulate_type(type));
  }
}

c10::IValue& named(Functional& f, std::string_view name) {
  const auto index = f.op.schema().argumentIndexWithName(name);
  TORCH_CHECK(index, f.op.schema().operator_name(), " has no argument '", name, "'");
  return f.stack[*index];
}

at::Tensor run(Functional& f) {
  widen_halves(f.stack);
  f.op.callBoxed(f.stack);
  return f.stack.at(0).toTensor();
}

double mean_count(const LocalArgs& args) {
  const auto sizes = at::infer_size(args.global_sizes("self"), args.global_sizes("target"));
  return static_cast<double>(c10::multiply_integers(sizes));
}

void loss_mean_global(LocalCall& call) {
  const LocalArgs args(call);
  const auto reduction = args.integer("reduction");
  auto f = functional_of(call);
  if (reduction == at::Reduction::Mean) named(f, "reduction") = static_cast<std::int64_t>(at::Reduction::Sum);
  auto loss = run(f);
  if (reduction == at::Reduction::Mean) loss = loss / mean_count(args);
  const AxisMask axes = shard_axes(args.spec("self")) | shard_axes(args.spec("target"));
  if (reduction != at::Reduction::None) loss = reduce_contribution(call, loss, ReduceOp::sum, axes);
  give(call, {loss.to(call.outputs[0]->dtype)});
}

// ATen divides by self.numel(): here by the global one, through the (scalar) incoming gradient.
void loss_backward_global(LocalCall& call) {
  const LocalArgs args(call);
  auto f = functional_of(call);
  widen_halves(f.stack);
  if (args.integer("reduction") == at::Reduction::Mean) {
    named(f, "reduction") = static_cast<std::int64_t>(at::Reduction::Sum);
    auto& grad = named(f, "grad_output");
    grad = grad.toTensor() / static_cast<double>(c10::multiply_integers(args.global_sizes("self")));
  }
  give(call, {run(f).to(call.outputs[0]->dtype)});
}

// multi_margin_loss and its kin divide by the number of rows: [N, C], or one row.
double row_count(const LocalArgs& args) {
  const auto sizes = args.global_sizes("self");
  return sizes.size() > 1 ? static_cast<double>(sizes[0]) : 1;
}

void sum_instead_of_mean(LocalCall& call) {
  const auto& schema = call.info.schema();
  const auto index = *schema.argumentIndexWithName("reduction");
  torch::jit::peek(call.stack, index, schema.arguments().size()) = static_cast<std::int64_t>(at::Reduction::Sum);
}

void margin_loss_backward(LocalCall& call, const LocalArgs& args) {
  const auto& schema = call.info.schema();
  auto& grad = torch::jit::peek(call.stack, *schema.argumentIndexWithName("grad_output"), schema.arguments().size());
  grad = grad.toTensor() / row_count(args);
  sum_instead_of_mean(call);
  call.info.op.callBoxed(call.stack);
}

void margin_loss(LocalCall& call) {
  if (give_zeros_if_empty(call)) return;
  const LocalArgs args(call);
  if (args.integer("reduction") != at::Reduction::Mean) return call.info.op.callBoxed(call.stack);
  if (args.has("grad_output")) return margin_loss_backward(call, args);
  const double rows = row_count(args);
  const AxisMask axes = shard_axes(args.spec("self"), 0) | shard_axes(args.spec("target"), 0);
  sum_instead_of_mean(call);
  auto results = run_plain(call);
  results[0] = reduce_contribution(call, results[0] / rows, ReduceOp::sum, axes);
  give(call, std::move(results));
}

}  // namespace

void register_loss_kernels() {
  register_local_kernel("margin_loss", margin_loss);
  register_local_kernel("loss_mean_global", loss_mean_global);
  register_local_kernel("loss_backward_global", loss_backward_global);
}

}  // namespace dtensor
