// The operator dtensor::gated_product: its composite kernels and its autograd node, which recomputes the activation of
// the gate in backward with the operators that ATen's formulas would run.
#include "internal/gated_product.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include "internal/autograd_node.h"
#include "internal/library_operator.h"

namespace dtensor {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

std::string_view approximation(std::string_view activation) { return activation == "gelu_tanh" ? "tanh" : "none"; }

at::Tensor activated(const at::Tensor& x, std::string_view activation) {
  return activation == "silu" ? at::silu(x) : at::gelu(x, approximation(activation));
}

// silu_backward has no derivative; with a graph, ATen's formula of silu is this composition.
at::Tensor silu_gradient(const at::Tensor& grad, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return at::silu_backward(grad, x);
  const at::Tensor sigmoid = x.sigmoid();
  return grad * sigmoid * (1.0 + x * (1.0 - sigmoid));
}

at::Tensor gate_gradient(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                         std::string_view activation) {
  const at::Tensor product = grad * up;
  return activation == "silu" ? silu_gradient(product, gate)
                              : at::gelu_backward(product, gate, approximation(activation));
}

std::string_view name_of(GateKind kind) {
  return kind == GateKind::silu ? "silu" : kind == GateKind::gelu ? "gelu" : "gelu_tanh";
}

using Product = at::Tensor(const at::Tensor&, const at::Tensor&, std::string_view);
using Gradients = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                     std::string_view);

struct GatedProductBackward final : Node {
  SavedVariable gate, up;
  std::string activation;

  std::string name() const override { return "GatedProductBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    gate.reset_data(), up.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(2);
    const bool to_gate = task_should_compute_output(0), to_up = task_should_compute_output(1);
    const at::Tensor g = gate.unpack(), u = up.unpack();
    if (to_gate && to_up && !at::GradMode::is_enabled()) {
      static const auto op = library_operator<Gradients>("dtensor::gated_product_backward");
      auto [of_gate, of_up] = op.call(grads[0], g, u, activation);
      return {std::move(of_gate), std::move(of_up)};
    }
    return {to_gate ? gate_gradient(grads[0], g, u, activation) : at::Tensor(),
            to_up ? grads[0] * activated(g, activation) : at::Tensor()};
  }
};

const c10::TypedOperatorHandle<Product>& product() {
  static const auto op = library_operator<Product>("dtensor::gated_product");
  return op;
}

at::Tensor with_node(const at::Tensor& gate, const at::Tensor& up, std::string_view activation) {
  // A composition has derivatives in forward mode, which the node has not.
  if (torch::autograd::isFwGradDefined(gate) || torch::autograd::isFwGradDefined(up)) {
    return gated_product_of_aten(gate, up, activation);
  }
  at::Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    y = product().call(gate, up, activation);
  }
  if (!torch::autograd::compute_requires_grad(gate, up)) return y;
  const auto node = make_node<GatedProductBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(gate, up));
  node->gate = SavedVariable(gate, false), node->up = SavedVariable(up, false);
  node->activation = activation;
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace

at::Tensor gated_product_of_aten(const at::Tensor& gate, const at::Tensor& up, std::string_view activation) {
  return activated(gate, activation) * up;
}

std::tuple<at::Tensor, at::Tensor> gated_product_gradients_of_aten(const at::Tensor& grad, const at::Tensor& gate,
                                                                   const at::Tensor& up, std::string_view activation) {
  at::Tensor to_up = grad * activated(gate, activation);
  return {gate_gradient(grad, gate, up, activation), std::move(to_up)};
}

at::Tensor gated_product(GateKind kind, const at::Tensor& gate, const at::Tensor& up) {
  return product().call(gate, up, name_of(kind));
}

TORCH_LIBRARY_IMPL(dtensor, CompositeExplicitAutograd, m) {
  m.impl("gated_product", gated_product_of_aten);
  m.impl("gated_product_backward", gated_product_gradients_of_aten);
}
TORCH_LIBRARY_IMPL(dtensor, Autograd, m) { m.impl("gated_product", with_node); }

}  // namespace dtensor
