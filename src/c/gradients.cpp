// Losses, backward passes and gradients.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "c/handles.h"
#include "c/status.h"

namespace dtensor::c {
namespace {

void check_equal_sizes(const DTensor& prediction, const DTensor& target) {
  TORCH_CHECK_VALUE(prediction.sizes() == target.sizes() && prediction.scalar_type() == target.scalar_type(),
                    "expected a prediction and a target of equal sizes and dtypes, got ", prediction.scalar_type(), " ",
                    prediction.sizes(), " and ", target.scalar_type(), " ", target.sizes());
}

// Scores [rows, classes, ...] and class indices [rows, ...].
void check_classes(const DTensor& scores, const DTensor& classes) {
  at::DimVector expected(scores.sizes());
  if (scores.dim() > 1) expected.erase(expected.begin() + 1);
  TORCH_CHECK_VALUE(scores.dim() > 1 && scores.is_floating_point() && classes.scalar_type() == at::kLong &&
                        classes.sizes() == expected,
                    "expected scores [rows, classes, ...] and a target of Long [rows, ...], got ", scores.scalar_type(),
                    " ", scores.sizes(), " and ", classes.scalar_type(), " ", classes.sizes());
}

using LossFn = at::Tensor (*)(const DTensor&, const DTensor&);

dtensor_status make_loss(const char* caller, const dtensor_tensor* prediction, const dtensor_tensor* target,
                         dtensor_tensor** loss, LossFn compute) {
  return guarded_on_all(caller, {prediction, target}, [&] {
    auto& result = required(loss, "pointer for the loss");
    result = new_tensor(compute(object(prediction, "prediction").tensor, object(target, "target").tensor));
  });
}

// The gradient of the output of a backward pass. Autograd would expand or sum one of other sizes.
at::Tensor gradient_of(const DTensor& output, const dtensor_tensor* handle) {
  TORCH_CHECK_VALUE(output.requires_grad(), "expected a result of a recorded computation, got a tensor that ",
                    "requires no gradient");
  TORCH_CHECK_VALUE(handle != nullptr || output.numel() == 1, "expected a gradient of sizes ", output.sizes(),
                    ", got a null pointer; it may be null for a tensor with one element");
  if (handle == nullptr) return {};
  const at::Tensor gradient = object(handle, "gradient").tensor;
  TORCH_CHECK_VALUE(gradient.sizes() == output.sizes() && gradient.scalar_type() == output.scalar_type(),
                    "expected a gradient of ", output.scalar_type(), " ", output.sizes(), " as the tensor, got one of ",
                    gradient.scalar_type(), " ", gradient.sizes());
  return gradient;
}

TensorVector derived_tensors(int count, const dtensor_tensor* const* handles) {
  TensorVector tensors = tensors_of(count, handles, "tensor");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.requires_grad(), "expected tensors that require gradients, got one of sizes ",
                      tensor.sizes(), " that requires none");
  }
  return tensors;
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_tensor_set_requires_grad(dtensor_tensor* tensor, int on) {
  return guarded_on_all(__func__, {tensor}, [&] {
    auto& changed = object(tensor).tensor;
    agree_on_switch(changed.mesh().communicator(), on);
    changed.requires_grad_(on == 1);
  });
}

dtensor_status dtensor_mse_loss(const dtensor_tensor* prediction, const dtensor_tensor* target, dtensor_tensor** loss) {
  return make_loss(__func__, prediction, target, loss, [](const dtensor::DTensor& a, const dtensor::DTensor& b) {
    check_equal_sizes(a, b);
    return at::mse_loss(a, b);
  });
}

dtensor_status dtensor_l1_loss(const dtensor_tensor* prediction, const dtensor_tensor* target, dtensor_tensor** loss) {
  return make_loss(__func__, prediction, target, loss, [](const dtensor::DTensor& a, const dtensor::DTensor& b) {
    check_equal_sizes(a, b);
    return at::l1_loss(a, b);
  });
}

dtensor_status dtensor_cross_entropy_loss(const dtensor_tensor* prediction, const dtensor_tensor* target,
                                          dtensor_tensor** loss) {
  return make_loss(__func__, prediction, target, loss, [](const dtensor::DTensor& a, const dtensor::DTensor& b) {
    check_classes(a, b);
    return at::cross_entropy_loss(a, b);
  });
}

dtensor_status dtensor_tensor_backward(const dtensor_tensor* tensor, const dtensor_tensor* gradient) {
  return guarded_on_all(__func__, {tensor, gradient}, [&] {
    const auto& output = object(tensor).tensor;
    output.backward(gradient_of(output, gradient));
  });
}

dtensor_status dtensor_autograd_grad(const dtensor_tensor* output, const dtensor_tensor* gradient, int count,
                                     const dtensor_tensor* const* tensors, dtensor_tensor** results, int create_graph) {
  return guarded_on_all(__func__, {output, gradient}, [&] {
    const auto& derived = object(output).tensor;
    agree_on_switch(derived.mesh().communicator(), create_graph);
    required(results, "list of results");
    const bool keep = create_graph == 1;
    const auto found = torch::autograd::grad({derived}, derived_tensors(count, tensors),
                                             {gradient_of(derived, gradient)}, keep, keep, /*allow_unused=*/true);
    std::transform(found.begin(), found.end(), results,
                   [](const at::Tensor& tensor) { return tensor.defined() ? new_tensor(tensor) : nullptr; });
  });
}

dtensor_status dtensor_tensor_grad(const dtensor_tensor* tensor, dtensor_tensor** gradient) {
  return guarded(__func__, [&] {
    auto& result = required(gradient, "pointer for the gradient");
    const at::Tensor grad = object(tensor).tensor.grad();
    result = grad.defined() ? new_tensor(grad) : nullptr;
  });
}

dtensor_status dtensor_tensor_zero_grad(dtensor_tensor* tensor) {
  return guarded_on_all(__func__, {tensor}, [&] { object(tensor).tensor.mutable_grad() = at::Tensor(); });
}
