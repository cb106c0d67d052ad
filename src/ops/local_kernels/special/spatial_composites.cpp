// Composite operators on images as compositions of operators that exchange halos. ATen's compositions use a gradient as
// the weight of a convolution, or write to slices, which would gather sharded spatial dimensions.
#include <ATen/ATen.h>
#include <ATen/ops/_pad_circular_native.h>

#include <algorithm>

#include "ops/local_kernels/special/special_kernel.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The tensor, or an undefined one.
at::Tensor given(const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); }

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

at::Tensor over_channels(const at::Tensor& bias, std::int64_t dims) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(dims), 1);
  sizes[1] = -1;
  return bias.view(sizes);
}

// Pads or crops one dimension. The amounts are those of constant_pad_nd.
at::Tensor moved(const at::Tensor& self, std::size_t index, std::size_t count, std::int64_t before,
                 std::int64_t after) {
  std::vector<std::int64_t> amounts(count, 0);
  amounts[index] = before;
  amounts[index + 1] = after;
  return at::constant_pad_nd(self, amounts, 0);
}

}  // namespace

// A convolution is linear in the input and in the weight, so the derivatives of its gradients are convolutions, and
// gradients of convolutions, with one of them replaced by `of_input` or `of_weight`.
Gradients convolution_double_backward_special(const std::optional<at::Tensor>& of_input,
                                              const std::optional<at::Tensor>& of_weight,
                                              const std::optional<at::Tensor>& of_bias, const at::Tensor& grad,
                                              const at::Tensor& weight, const at::Tensor& input, at::IntArrayRef stride,
                                              at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                                              at::IntArrayRef output_padding, std::int64_t groups,
                                              std::array<bool, 3> mask) {
  const auto convolve = [&](const at::Tensor& x, const at::Tensor& w) {
    return at::convolution(x, w, std::nullopt, stride, padding, dilation, transposed, output_padding, groups);
  };
  const auto backward = [&](const at::Tensor& x, const at::Tensor& w, std::array<bool, 3> wanted) {
    return at::convolution_backward(grad, x, w, std::nullopt, stride, padding, dilation, transposed, output_padding,
                                    groups, wanted);
  };
  const at::Tensor x = given(of_input), w = given(of_weight), b = given(of_bias);
  at::Tensor to_grad, to_input, to_weight;
  if (mask[0]) {
    if (x.defined()) to_grad = convolve(x, weight);
    if (w.defined()) to_grad = sum_of(to_grad, convolve(input, w));
    if (b.defined()) to_grad = sum_of(to_grad, over_channels(b, grad.dim()).expand_as(grad));
  }
  if (mask[1] && w.defined()) to_input = std::get<0>(backward(input, w, {true, false, false}));
  if (mask[2] && x.defined()) to_weight = std::get<1>(backward(x, weight, {false, true, false}));
  return {to_grad, to_input, to_weight};
}

// Along each dimension, the sum of the padded tensor and of its two ends, which constant_pad_nd moves to the other
// side.
at::Tensor pad_circular_special(const at::Tensor& self, at::IntArrayRef pad) {
  const auto count = pad.size();
  bool valid = dtensor_or_null(self) && count % 2 == 0 && static_cast<std::int64_t>(count) <= 2 * self.dim();
  for (std::size_t i = 0; valid && i < count; ++i) {
    const auto n = self.size(self.dim() - 1 - static_cast<std::int64_t>(i / 2));
    valid = pad[i] <= n && pad[i] + pad[i ^ 1] + n > 0 && pad[i] > -n;
  }
  if (!valid) return at::native::_pad_circular_symint(self, c10::fromIntArrayRefSlow(pad));
  at::Tensor result = self;
  for (std::size_t i = 0; i < count; i += 2) {
    const auto before = pad[i], after = pad[i + 1], n = result.size(self.dim() - 1 - static_cast<std::int64_t>(i / 2));
    const at::Tensor source = result;
    if (before != 0 || after != 0) result = moved(source, i, count, before, after);
    if (before > 0) result = result + moved(source, i, count, before - n, after + n);
    if (after > 0) result = result + moved(source, i, count, before + n, after - n);
  }
  return result;
}

}  // namespace dtensor
