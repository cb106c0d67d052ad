// Losses, backward passes and gradients.
#include <ATen/ATen.h>

#include "c/handles.h"
#include "c/status.h"

using namespace dtensor::c;

dtensor_status dtensor_tensor_set_requires_grad(dtensor_tensor* tensor, int on) {
  return guarded(__func__, [&] {
    TORCH_CHECK_VALUE(on == 0 || on == 1, "expected 0 or 1, got ", on);
    required(tensor, "tensor").tensor.requires_grad_(on == 1);
  });
}

dtensor_status dtensor_mse_loss(const dtensor_tensor* prediction, const dtensor_tensor* target, dtensor_tensor** loss) {
  return guarded(__func__, [&] {
    auto& result = required(loss, "pointer for the loss");
    const auto &a = required(prediction, "prediction").tensor, &b = required(target, "target").tensor;
    TORCH_CHECK_VALUE(a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type(),
                      "expected a prediction and a target of equal sizes and dtypes, got ", a.scalar_type(), " ",
                      a.sizes(), " and ", b.scalar_type(), " ", b.sizes());
    result = new_tensor(at::mse_loss(a, b));
  });
}

dtensor_status dtensor_tensor_backward(const dtensor_tensor* tensor, const dtensor_tensor* gradient) {
  return guarded(__func__, [&] {
    const auto& output = required(tensor, "tensor").tensor;
    TORCH_CHECK_VALUE(output.requires_grad(), "expected a result of a recorded computation, got a tensor that ",
                      "requires no gradient");
    TORCH_CHECK_VALUE(gradient != nullptr || output.numel() == 1, "expected a gradient of sizes ", output.sizes(),
                      ", got a null pointer; it may be null for a tensor with one element");
    output.backward(gradient == nullptr ? at::Tensor() : at::Tensor(gradient->tensor));
  });
}

dtensor_status dtensor_tensor_grad(const dtensor_tensor* tensor, dtensor_tensor** gradient) {
  return guarded(__func__, [&] {
    auto& result = required(gradient, "pointer for the gradient");
    const at::Tensor grad = required(tensor, "tensor").tensor.grad();
    result = grad.defined() ? new_tensor(grad) : nullptr;
  });
}

dtensor_status dtensor_tensor_zero_grad(dtensor_tensor* tensor) {
  return guarded(__func__, [&] { required(tensor, "tensor").tensor.mutable_grad() = at::Tensor(); });
}
