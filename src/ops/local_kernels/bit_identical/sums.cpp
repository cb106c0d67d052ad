// Sums by the tree in a BitIdentical scope: sum, mean, norms, losses, gradients of norms.
#include <ATen/core/Reduction.h>
#include <ATen/ops/_fused_rms_norm_backward.h>

#include <c10/core/WrapDimMinimal.h>

#include "ops/local_kernels/bit_identical/tree.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

using bit_identical::first_dims;
using bit_identical::leaves_of;
using bit_identical::sum_over;
using bit_identical::sum_squares;
using bit_identical::sum_type;

// Sums of integers have no order.
at::Tensor sum_of_integers(const LocalCall& call, const at::Tensor& self, at::IntArrayRef dims) {
  const auto sum = at::sum(self, dims, false, call.outputs[0]->dtype);
  return all_reduce(call.mesh, sum, ReduceOp::sum, shard_axes(LocalArgs(call).spec("self"), dims));
}

at::Tensor with_kept_dims(const LocalArgs& args, at::Tensor sum, std::vector<std::int64_t> dims) {
  if (!args.flag("keepdim")) return sum;
  std::sort(dims.begin(), dims.end());
  for (const auto d : dims) sum = sum.unsqueeze(d);
  return sum;
}

template <bool mean>
void sum(LocalCall& call) {
  const LocalArgs args(call);
  const auto dims = args.reduced_dims();
  const auto sizes = args.global_sizes("self");
  const auto type = call.outputs[0]->dtype;
  auto self = args.tensor("self");
  at::Tensor result;
  if (at::isIntegralType(type, true)) {
    result = sum_of_integers(call, self, dims);
  } else {
    if (args.dtype() || !at::isFloatingType(self.scalar_type())) self = self.to(type);
    result = sum_over(call.mesh, args.spec("self"), sizes, self, dims);
  }
  double count = 1;
  for (const auto d : dims) count *= static_cast<double>(sizes[static_cast<std::size_t>(d)]);
  if (mean) result = result.div(count);
  set_results(call, {with_kept_dims(args, result, dims).to(type)});
}

// The tensors' norms of order 2, computed in float64.
void list_norm(LocalCall& call) {
  const LocalArgs args(call);
  const double p = args.value("ord").toScalar().toDouble();
  TORCH_CHECK_NOT_IMPLEMENTED(p == 2, call.info.name(), " of order ", p, " has no bit-identical form; expected 2");
  auto norms = args.value("self").toTensorVector();
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const TensorSpec* spec = call.inputs[i].get();
    if (!norms[i].defined()) continue;
    const auto sizes = spec != nullptr ? at::IntArrayRef(spec->sizes) : norms[i].sizes();
    const auto& mesh = spec != nullptr ? as_mesh_impl(*spec->mesh) : call.mesh;
    const auto leaves = leaves_of(mesh, spec, sizes, first_dims(std::ssize(sizes)), 1);
    norms[i] = sum_squares(norms[i], leaves).sqrt().to(call.decision.outputs[i].meta.dtype);
  }
  torch::jit::drop(call.stack, call.info.args.size());
  call.stack.emplace_back(std::move(norms));
}

// Sums over the dimensions before the normalized ones.
at::Tensor sum_over_rows(const LocalCall& call, const LocalArgs& args, const at::Tensor& products) {
  const auto rows = products.dim() - std::ssize(args.value("normalized_shape").toIntVector());
  return sum_over(call.mesh, args.spec("grad_out"), args.global_sizes("grad_out"), products, first_dims(rows));
}

// ATen's operator of the CPU for the gradient of the input only.
at::Tensor gradient_of_input(LocalCall& call) {
  const auto arguments = torch::jit::last(call.stack, call.info.args.size());
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  auto mask = stack.back().toBoolList().copy();
  for (std::size_t i = 1; i < mask.size(); ++i) mask[i] = false;
  stack.back() = mask;
  call.info.op.callBoxed(stack);
  return stack[0].toTensor();
}

// Means over the normalized dimensions, which stay with size 1, of a tensor with the sizes of the input.
at::Tensor mean_of(const LocalCall& call, const LocalArgs& args, const at::Tensor& t) {
  const auto sizes = args.global_sizes("input");
  const auto rows = sizes.size() - static_cast<std::size_t>(args.value("normalized_shape").toIntList().size());
  std::vector<std::int64_t> dims, kept = t.sizes().vec();
  for (auto d = rows; d < sizes.size(); ++d) {
    dims.push_back(static_cast<std::int64_t>(d));
    kept[d] = 1;
  }
  const auto sum = sum_over(call.mesh, args.spec("input"), sizes, t, dims).view(kept);
  return at::div(sum, static_cast<double>(c10::multiply_integers(sizes.slice(rows))));
}

at::Tensor in_type(const LocalArgs& args, const char* name, at::ScalarType type) {
  const auto t = args.tensor(name);
  return t.defined() ? t.to(type) : t;
}

// On devices other than the CPU.
void layer_norm(LocalCall& call) {
  const LocalArgs args(call);
  const auto type = sum_type(args.tensor("input").scalar_type());
  const auto x = in_type(args, "input", type), mean = mean_of(call, args, x), centered = at::sub(x, mean);
  const auto variance = mean_of(call, args, at::mul(centered, centered));
  const auto rstd = at::rsqrt(at::add(variance, args.value("eps").toDouble()));
  auto y = at::mul(centered, rstd);
  if (const auto weight = in_type(args, "weight", type); weight.defined()) y = at::mul(y, weight);
  if (const auto bias = in_type(args, "bias", type); bias.defined()) y = at::add(y, bias);
  set_results(call, {y.to(call.outputs[0]->dtype), mean.to(call.outputs[1]->dtype), rstd.to(call.outputs[2]->dtype)});
}

// The same on other devices. With x^ = (x - mean) rstd: rstd (g - mean(g) - x^ mean(g x^)), where g is the gradient
// times the weight.
at::Tensor composed_gradient_of_input(const LocalCall& call, const LocalArgs& args) {
  const auto type = sum_type(args.tensor("input").scalar_type());
  const auto rstd = in_type(args, "rstd", type), weight = in_type(args, "weight", type);
  const auto normal = at::mul(at::sub(in_type(args, "input", type), in_type(args, "mean", type)), rstd);
  auto grad = in_type(args, "grad_out", type);
  if (weight.defined()) grad = at::mul(grad, weight);
  const auto along = at::mul(normal, mean_of(call, args, at::mul(grad, normal)));
  return at::mul(rstd, at::sub(at::sub(grad, mean_of(call, args, grad)), along)).to(call.outputs[0]->dtype);
}

// The gradients of weight and bias are sums over rows of grad x^ and grad, each product rounded in the dtype of sums.
void layer_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto mask = args.value("output_mask").toBoolList();
  std::vector<at::Tensor> results(3);
  const auto grad = args.tensor("grad_out");
  const auto type = sum_type(grad.scalar_type());
  if (mask[0]) {
    results[0] = grad.is_cpu() ? gradient_of_input(call) : composed_gradient_of_input(call, args);
  }
  if (mask[1]) {
    const auto centered = at::sub(args.tensor("input").to(type), args.tensor("mean").to(type));
    const auto normal = at::mul(centered, args.tensor("rstd").to(type));
    results[1] = sum_over_rows(call, args, at::mul(grad.to(type), normal)).to(call.outputs[1]->dtype);
  }
  if (mask[2]) results[2] = sum_over_rows(call, args, grad).to(call.outputs[2]->dtype);
  set_results(call, std::move(results));
}

void rms_norm_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto mask = args.value("output_mask").toBoolList();
  std::vector<at::Tensor> results(2);
  const auto grad = args.tensor("grad_out");
  const auto type = sum_type(grad.scalar_type());
  if (mask[0]) results[0] = gradient_of_input(call);
  if (mask[1]) {
    const auto normal = at::mul(args.tensor("input").to(type), args.tensor("rstd").to(type));
    results[1] = sum_over_rows(call, args, at::mul(grad.to(type), normal)).to(call.outputs[1]->dtype);
  }
  set_results(call, std::move(results));
}

// grad_input = output (grad - sum of grad output along the dimension).
void softmax_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto given = args.tensor("grad_output");
  const auto type = sum_type(given.scalar_type());
  const auto grad = given.to(type), output = args.tensor("output").to(type);
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), grad.dim());
  auto sum = at::mul(grad, output);
  if (grad.dim() > 0) {
    sum = sum_over(call.mesh, args.spec("output"), args.global_sizes("output"), sum, {dim}).unsqueeze(dim);
  }
  set_results(call, {at::mul(output, at::sub(grad, sum)).to(call.outputs[0]->dtype)});
}

// Runs an operator along the last dimension of contiguous operands.
void last_dimension(LocalCall& call) {
  const auto given = torch::jit::last(call.stack, call.info.args.size());
  torch::jit::Stack args(given.begin(), given.end());
  const auto rank = args[0].toTensor().dim();
  if (rank == 0) return set_results(call, run_aten_operator(call));
  const auto dim = c10::maybe_wrap_dim(LocalArgs(call).integer("dim"), rank);
  for (auto& value : args) {
    if (value.isTensor()) value = value.toTensor().movedim(dim, -1).contiguous();
  }
  args[static_cast<std::size_t>(index_of(call, "dim"))] = std::int64_t{rank - 1};
  call.info.op.callBoxed(args);
  set_results(call, {args[0].toTensor().movedim(-1, dim)});
}

// The losses of single targets and their weights.
std::pair<at::Tensor, at::Tensor> losses_of_targets(const LocalArgs& args, at::ScalarType type) {
  const auto given = args.tensor("self"), target = args.tensor("target"), weight = args.tensor("weight");
  const auto self = given.dim() > 2 ? given.movedim(1, -1) : given;  // classes last
  const auto ignored = target.eq(args.integer("ignore_index"));
  const auto index = target.masked_fill(ignored, 0);
  check_indices(index, self.size(-1), "nll_loss: target");
  auto weights = ignored.logical_not().to(type);
  if (weight.defined()) weights = weights * weight.to(type).index_select(0, index.reshape({-1})).view_as(index);
  const auto chosen = self.gather(-1, index.unsqueeze(-1)).squeeze(-1).to(type);
  return {chosen.mul(weights).neg().masked_fill(ignored, 0), weights};
}

void nll_loss(LocalCall& call) {
  const LocalArgs args(call);
  const auto type = sum_type(args.tensor("self").scalar_type());
  const auto [losses, weights] = losses_of_targets(args, type);
  const auto over_all = [&](const at::Tensor& t) {
    const auto dims = first_dims(t.dim());
    return sum_over(call.mesh, args.spec("target"), args.global_sizes("target"), t, dims);
  };
  const auto reduction = args.integer("reduction");
  const auto total = over_all(weights);
  auto loss = losses;
  if (reduction != at::Reduction::None) loss = over_all(losses);
  if (reduction == at::Reduction::Mean) loss = loss / total;
  const auto shown = reduction == at::Reduction::None ? at::zeros_like(total) : total;
  set_results(call, {loss.to(call.outputs[0]->dtype), shown.to(call.outputs[1]->dtype)});
}

// The sum or mean of the squares of differences.
void mse_loss(LocalCall& call) {
  const LocalArgs args(call);
  const auto sizes = args.global_sizes("self");
  const auto type = sum_type(args.tensor("self").scalar_type());
  const auto difference = at::sub(args.tensor("self").to(type), args.tensor("target").to(type));
  auto loss =
      sum_over(call.mesh, args.spec("self"), sizes, at::mul(difference, difference), first_dims(difference.dim()));
  if (args.integer("reduction") == at::Reduction::Mean) {
    loss = loss.div(static_cast<double>(c10::multiply_integers(sizes)));
  }
  set_results(call, {loss.to(call.outputs[0]->dtype)});
}

}  // namespace

void add_tree_sum_kernels(LocalKernels& kernels) {
  kernels.emplace("tree_nll_loss", nll_loss);
  kernels.emplace("tree_mse_loss", mse_loss);
  kernels.emplace("tree_layer_norm", layer_norm);
  kernels.emplace("tree_layer_norm_backward", layer_norm_backward);
  kernels.emplace("tree_rms_norm_backward", rms_norm_backward);
  kernels.emplace("tree_softmax_backward", softmax_backward);
  kernels.emplace("last_dimension", last_dimension);
  kernels.emplace("tree_sum", sum<false>);
  kernels.emplace("tree_mean", sum<true>);
  kernels.emplace("tree_list_norm", list_norm);
}

}  // namespace dtensor
