// RMS norm of DTensors as one autograd node, which saves its input and no float copies of it. Half-precision DTensors
// on a GPU take one kernel each way, others the elementwise operators of ATen's composite kernel.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/_fused_rms_norm_backward_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "internal/autograd_node.h"
#include "internal/bit_identical.h"
#include "internal/dispatch_modes.h"
#include "internal/kernels/gpu_kernels.h"
#include "ops/dispatch/boxed_kernel.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "row_norm/kernels.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

bool is_half(const at::Tensor& t) { return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16; }

// The gradients as a composition of differentiable operators.
variable_list differentiable(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight, double eps,
                             at::IntArrayRef shape, std::array<bool, 2> mask) {
  std::vector<std::int64_t> inner, outer;
  const auto first = x.dim() - static_cast<std::int64_t>(shape.size());
  for (std::int64_t d = 0; d < x.dim(); ++d) (d < first ? outer : inner).push_back(d);
  const auto type = at::toOpMathType(x.scalar_type());
  const auto wide = x.to(type), g = grad.to(type);
  const auto rstd = (wide.square().mean(inner, true) + eps).rsqrt(), xhat = wide * rstd;
  variable_list grads(2);
  const auto scaled = weight.defined() ? g * weight : g;
  if (mask[0]) grads[0] = (rstd * (scaled - xhat * (scaled * xhat).mean(inner, true))).to(x.scalar_type());
  if (mask[1]) grads[1] = (outer.empty() ? g * xhat : (g * xhat).sum(outer)).to(weight.scalar_type());
  return grads;
}

struct RmsNormBackward final : Node {
  SavedVariable x, weight, rstd;
  std::vector<std::int64_t> shape;
  double eps = 0;
  bool has_kernel = false;

  std::string name() const override { return "FusedRmsNormBackward0"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* saved : {&x, &weight, &rstd}) saved->reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(2);
    const std::array<bool, 2> mask{task_should_compute_output(0), task_should_compute_output(1)};
    const at::Tensor input = x.unpack(), scale = weight.unpack();
    if (!has_kernel || at::GradMode::is_enabled() || is_dispatch_mode_active()) {
      return differentiable(input, grads[0], scale, eps, shape, mask);
    }
    auto [to_x, to_weight] = at::_ops::_fused_rms_norm_backward::redispatch(c10::DispatchKeySet(kDTensorKey), grads[0],
                                                                            input, shape, rstd.unpack(), scale, mask);
    return {std::move(to_x), std::move(to_weight)};
  }
};

// Whether the node represents the call. ATen's composite kernel raises errors for invalid calls.
bool takes(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight) {
  if (!dtensor_or_null(x) || !x.is_floating_point() || is_dispatch_mode_active() || torch::autograd::isFwGradDefined(x))
    return false;
  const auto sizes = x.sizes();
  if (shape.empty() || sizes.size() < shape.size() || !sizes.slice(sizes.size() - shape.size()).equals(shape))
    return false;
  if (!weight.defined()) return true;
  const bool fits = weight.scalar_type() == at::kFloat || weight.scalar_type() == x.scalar_type();
  return fits && dtensor_or_null(weight) && weight.sizes().equals(shape) && !torch::autograd::isFwGradDefined(weight);
}

bool takes_kernel(const at::Tensor& x) {
  return !is_bit_identical() && is_half(x) && takes_gpu_kernel(GpuKernel::layer_norm, x.device().type()) &&
         row_norm::has_kernels(x);
}

at::Tensor composed(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight, std::optional<double> eps) {
  static const auto composite = c10::Dispatcher::singleton().findSchemaOrThrow("aten::rms_norm", "");
  torch::jit::Stack stack{x, shape.vec(), weight.defined() ? c10::IValue(weight) : c10::IValue(), eps};
  composite.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  return stack[0].toTensor();
}

double default_eps(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                        : std::numeric_limits<float>::epsilon();
}

}  // namespace

at::Tensor rms_norm_special(const at::Tensor& x, at::IntArrayRef shape, const std::optional<at::Tensor>& given,
                            std::optional<double> given_eps) {
  const at::Tensor weight = given.value_or(at::Tensor());
  static const auto& entry = entry_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_rms_norm", ""));
  if (!takes(x, shape, weight)) return composed(x, shape, weight, given_eps);
  const bool has_kernel = takes_kernel(x), saves = torch::autograd::compute_requires_grad(x, weight);
  if (!has_kernel && !saves) return composed(x, shape, weight, given_eps);
  const double eps = given_eps.value_or(default_eps(x));
  const at::Tensor input = x.detach(), scale = weight.defined() ? weight.detach() : weight;
  torch::jit::Stack stack{input, shape.vec(), scale.defined() ? c10::IValue(scale) : c10::IValue(), eps};
  if (has_kernel) run_operator(entry, stack);
  at::Tensor y = has_kernel ? stack[0].toTensor() : composed(input, shape, scale, eps);
  if (!saves) return y;
  const auto node = make_node<RmsNormBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, weight));
  node->x = SavedVariable(x, false), node->weight = SavedVariable(weight, false);
  if (has_kernel) node->rstd = SavedVariable(stack[1].toTensor(), false);
  node->shape = shape.vec(), node->eps = eps, node->has_kernel = has_kernel;
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace dtensor
