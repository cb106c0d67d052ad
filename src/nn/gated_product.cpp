// Recomputes the activation of the gate in backward, with the operators that ATen's formulas would run.
#include "internal/gated_product.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtensor {
namespace {

const char* approximation(GateKind kind) { return kind == GateKind::gelu_tanh ? "tanh" : "none"; }

at::Tensor activated(GateKind kind, const at::Tensor& x) {
  return kind == GateKind::silu ? at::silu(x) : at::gelu(x, approximation(kind));
}

at::Tensor activation_gradient(GateKind kind, const at::Tensor& grad, const at::Tensor& x) {
  return kind == GateKind::silu ? at::silu_backward(grad, x) : at::gelu_backward(grad, x, approximation(kind));
}

struct GatedProduct : torch::autograd::Function<GatedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, std::int64_t kind, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->saved_data["kind"] = kind;
    context->save_for_backward({gate, up});
    return activated(static_cast<GateKind>(kind), gate) * up;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto kind = static_cast<GateKind>(context->saved_data["kind"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor &grad = gradients[0], &gate = saved[0], &up = saved[1];
    torch::autograd::variable_list result(3);
    if (context->needs_input_grad(1)) result[2] = grad * activated(kind, gate);
    if (context->needs_input_grad(0)) result[1] = activation_gradient(kind, grad * up, gate);
    return result;
  }
};

}  // namespace

at::Tensor gated_product(GateKind kind, const at::Tensor& gate, const at::Tensor& up) {
  const bool saves = at::GradMode::is_enabled() && (gate.requires_grad() || up.requires_grad());
  return saves ? GatedProduct::apply(static_cast<std::int64_t>(kind), gate, up) : activated(kind, gate) * up;
}

}  // namespace dtensor
