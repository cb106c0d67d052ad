// linear as one operator in forward and one in backward. Autograd would decompose it into a transpose, a matrix product
// and two views, with as many operators in backward.
#include <ATen/ATen.h>
#include <ATen/ops/linear_backward_ops.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/linear_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "internal/autograd_node.h"
#include "internal/dispatch_modes.h"
#include "internal/kernels/aligned_rows.h"
#include "internal/saved_activation.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor as_rows(const at::Tensor& t) {
  TORCH_CHECK(
      t.dim() > 0,
      "the gradient of linear: expected operands of at least 1 dimension, got one without a dimension of features");
  return t.reshape({c10::multiply_integers(t.sizes().slice(0, t.sizes().size() - 1)), t.sizes().back()});
}

at::Tensor gradient_of_input(const at::Tensor& grad, const at::Tensor& weight) {
  const auto rows = as_rows(grad).mm(weight.conj());
  auto sizes = grad.sizes().vec();
  sizes.back() = weight.size(1);
  return rows.view(sizes);
}

// The gradients as a composition of differentiable operators.
Gradients differentiable(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight,
                         std::array<bool, 3> mask) {
  return {mask[0] ? gradient_of_input(grad, weight) : at::Tensor(),
          mask[1] ? as_rows(grad).t().mm(as_rows(x).conj()) : at::Tensor(),
          mask[2] ? as_rows(grad).sum(0) : at::Tensor()};
}

// Saves only the operands that the required gradients need. ATen's LinearBackward0 saves both, so a frozen weight would
// keep activations alive. Of a gathered input it saves the shards.
struct LinearBackward final : Node {
  SavedActivation x;
  SavedVariable weight;

  std::string name() const override { return "LinearBackward0"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x.reset();
    weight.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(3);
    const std::array<bool, 3> mask{task_should_compute_output(0), task_should_compute_output(1),
                                   task_should_compute_output(2)};
    const at::Tensor input = mask[1] ? x.unpack() : at::Tensor();
    const at::Tensor matrix = mask[0] ? weight.unpack() : at::Tensor();
    constexpr c10::DispatchKeySet kEngine(kDTensorKey);
    auto [to_x, to_weight, to_bias] =
        at::GradMode::is_enabled() || is_dispatch_mode_active()
            ? differentiable(input, grads[0], matrix, mask)
            : at::_ops::linear_backward::redispatch(kEngine, input, grads[0], matrix, mask);
    return {std::move(to_x), std::move(to_weight), std::move(to_bias)};
  }
};

auto node_of(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  using namespace torch::autograd;
  decltype(make_node<LinearBackward>()) node;
  if (!compute_requires_grad(x, weight, bias)) return node;
  node = make_node<LinearBackward>();
  node->set_next_edges(collect_next_edges(x, weight, bias));
  if (node->should_compute_output(0)) node->weight = SavedVariable(weight, false);
  if (node->should_compute_output(1)) node->x = SavedActivation(x);
  return node;
}

// Whether this kernel runs the call. ATen's composite kernel raises errors for invalid calls, and runs calls with
// forward-mode derivatives or under a dispatch mode, which expects ATen's decomposition.
bool takes(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool biased = bias.has_value() && bias->defined();
  if (!dtensor_or_null(x) || !dtensor_or_null(weight) || (biased && !dtensor_or_null(*bias))) return false;
  if (is_dispatch_mode_active() || x.dim() < 2 || weight.dim() != 2 || x.sizes().back() != weight.sizes()[1])
    return false;
  if (biased && (bias->dim() != 1 || bias->sizes()[0] != weight.sizes()[0])) return false;
  using torch::autograd::isFwGradDefined;
  return !isFwGradDefined(x) && !isFwGradDefined(weight) && !isFwGradDefined(bias);
}

}  // namespace

at::Tensor linear_special(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (!takes(x, weight, bias)) return at::native::linear(x, weight, bias);
  const auto node = node_of(x, weight, bias);
  auto out = at::_ops::linear::redispatch(c10::DispatchKeySet(kDTensorKey), x, weight, bias);
  if (node) torch::autograd::set_history(out, node);
  return out;
}

Gradients linear_backward_kernel(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight,
                                 std::array<bool, 3> mask) {
  const auto outputs = grad.dim() > 0 ? grad.sizes().back() : 0;
  const auto more = aligned_width(outputs, grad.scalar_type(), grad.device().type()) - outputs;
  if (more == 0) return differentiable(x, grad, weight, mask);
  const auto matrix = weight.defined() ? with_aligned_rows(weight) : weight;
  auto [to_x, to_weight, to_bias] = differentiable(x, at::constant_pad_nd(grad, {0, more}), matrix, mask);
  if (mask[1]) to_weight = to_weight.narrow(0, 0, outputs);
  if (mask[2]) to_bias = to_bias.narrow(0, 0, outputs);
  return {std::move(to_x), std::move(to_weight), std::move(to_bias)};
}

}  // namespace dtensor
