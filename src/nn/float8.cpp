// Linear products in float8 with one dynamic scale for each tensor.
#include "dtensor/nn/float8.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "dtensor/tensor.h"
#include "internal/float8.h"
#include "internal/scoped_value.h"

namespace dtensor::nn {
namespace {

struct Open {};

constexpr double kSmallest = 1e-30;  // largest magnitude of a tensor of zeros

// The tensor is values * scale.
struct Scaled {
  at::Tensor values, scale;
};

at::Tensor on_every_rank(const at::Tensor& t) {
  if (!is_dtensor(t)) return t;
  const DTensor tensor(t);
  return tensor.redistribute(Placements(static_cast<std::size_t>(tensor.mesh().ndim())));
}

Scaled scaled(const at::Tensor& t, at::ScalarType format) {
  const at::Tensor most = on_every_rank(at::linalg_vector_norm(t, std::numeric_limits<double>::infinity()));
  const at::Tensor scale = float8_scale(most, format);
  return {to_float8(t, scale, format), scale};
}

at::Tensor transposed(const at::Tensor& t) { return t.t().contiguous(); }

struct Float8Product : torch::autograd::Function<Float8Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    const Scaled rows = scaled(x, kFloat8Operand), matrix = scaled(weight, kFloat8Operand);
    context->save_for_backward({rows.values, rows.scale, weight});
    return float8_product(rows.values, rows.scale, matrix.values, matrix.scale, x.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "float8_linear: expected one backward pass without create_graph; its ",
                "derivative has no graph. Close Float8Scope for second derivatives");
    const auto saved = context->get_saved_variables();
    const at::Tensor &values = saved[0], &scale = saved[1], &weight = saved[2];
    const auto dtype = gradients[0].scalar_type();
    const Scaled gradient = scaled(gradients[0], kFloat8Gradient);
    torch::autograd::variable_list result(2);
    if (context->needs_input_grad(0)) {
      const Scaled matrix = scaled(weight, kFloat8Operand);
      result[0] = float8_product(gradient.values, gradient.scale, transposed(matrix.values), matrix.scale, dtype);
    }
    if (context->needs_input_grad(1)) {
      const auto of = float8_product(transposed(gradient.values), gradient.scale, transposed(values), scale, dtype);
      result[1] = of.to(weight.scalar_type());
    }
    return result;
  }
};

}  // namespace

at::Tensor float8_scale(const at::Tensor& largest_magnitude, at::ScalarType format) {
  const double largest = format == kFloat8Operand ? 448 : 57344;
  return (largest_magnitude.to(at::kFloat).clamp_min(kSmallest) / largest).log2().ceil().exp2();
}

// The scale is a power of two, so multiplying by its inverse is exact in bfloat16 and float, and rounds nothing twice.
at::Tensor to_float8(const at::Tensor& t, const at::Tensor& scale, at::ScalarType format) {
  const at::Tensor wide = t.scalar_type() == at::kHalf ? t.to(at::kFloat) : t;  // inverses exceed its range
  return (wide * scale.reciprocal().to(wide.scalar_type())).to(format);
}

// Kernels read both operands along k.
at::Tensor float8_product(const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
                          const at::Tensor& b_scale, at::ScalarType result) {
  return at::_scaled_mm(a, b.t(), a_scale, b_scale, {}, {}, result);
}

at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) && weight.size(0) % kFloat8Unit == 0 &&
                  weight.size(1) % kFloat8Unit == 0,
              "float8_linear: expected x [..., in] and weight [out, in] with multiples of 16, got ", x.sizes(), " and ",
              weight.sizes());
  TORCH_CHECK(x.scalar_type() != at::kDouble && at::isFloatingType(x.scalar_type()),
              "float8_linear: expected float32, bfloat16 or float16, got ", x.scalar_type());
  if (x.numel() == 0) return at::linear(x, weight.to(x.scalar_type()));  // no numbers, and so no largest magnitude
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return Float8Product::apply(x.reshape({-1, x.size(-1)}), weight).view(sizes);
}

Float8Scope::Float8Scope() : scope_(open_scope(Open{}, Recompute::restored)) {}
bool Float8Scope::current() { return ScopedValue<Open>::current() != nullptr; }

}  // namespace dtensor::nn
