// Linear, embedding and norms: ATen operators, and the initial values of torch.nn.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dtensor/nn.h"
#include "dtensor/nn/float8.h"
#include "dtensor/tensor.h"
#include "internal/kernels/gpu_kernels.h"

namespace dtensor::nn {

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, at::TensorOptions options)
    : weight(at::empty({out, in}, options)) {
  if (with_bias) bias = at::empty({out}, options);
  register_parameter("weight", weight);
  register_parameter("bias", bias);
  register_parameter("lora_a", lora_a);
  register_parameter("lora_b", lora_b);
  Linear::reset_parameters();
}

void Linear::adapt(std::int64_t rank, double alpha) {
  TORCH_CHECK(rank > 0, "Linear: expected an adapter rank > 0, got ", rank);
  TORCH_CHECK(!is_dtensor(weight), "Linear: adapters must be added before the model is distributed");
  lora_a = at::empty({rank, weight.size(1)}, weight.options()).requires_grad_();
  lora_b = at::empty({weight.size(0), rank}, weight.options()).requires_grad_();
  lora_scale_ = alpha / static_cast<double>(rank);
  reset_adapter();
}

void Linear::reset_adapter() {
  reset_uniform(lora_a, weight.size(1));
  reset_to(lora_b, 0);
}

void Linear::reset_parameters() {
  reset_uniform(weight, weight.size(1));
  reset_uniform(bias, weight.size(1));
  reset_adapter();
}

// The adapter's inner dimension is replicated.
std::int64_t Linear::output_dim(const std::string& parameter) const { return parameter == "lora_a" ? -1 : 0; }
std::int64_t Linear::input_dim(const std::string& parameter) const { return parameter == "lora_b" ? -1 : 1; }

at::Tensor Linear::merged() const { return lora_a.defined() ? weight + lora_scale_ * at::mm(lora_b, lora_a) : weight; }

namespace {

// x weight^T + bias, in float8 inside of its scope if the sizes fit.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const bool fits = weight.size(0) % 16 == 0 && weight.size(1) % 16 == 0 && x.scalar_type() != at::kDouble;
  if (!fits || !Float8Scope::current()) return at::linear(x, weight, bias);
  const at::Tensor y = float8_linear(x, weight);
  return bias.defined() ? y + bias : y;
}

}  // namespace

at::Tensor Linear::compute(const at::Tensor& x) const {
  const at::Tensor y = product(x, weight, bias);
  return lora_a.defined() ? y + lora_scale_ * at::linear(at::linear(x, lora_a), lora_b) : y;
}

Embedding::Embedding(std::int64_t count, std::int64_t size, std::int64_t padding_idx, at::TensorOptions options)
    : weight(at::empty({count, size}, options)), padding_idx_(padding_idx) {
  TORCH_CHECK(padding_idx >= -1 && padding_idx < count, "Embedding: expected padding_idx in [-1, ", count, "), got ",
              padding_idx);
  register_parameter("weight", weight);
  Embedding::reset_parameters();
}

void Embedding::reset_parameters() {
  if (weight.is_meta()) return;
  at::NoGradGuard no_grad;
  weight.normal_();
  if (padding_idx_ < 0) return;
  // Not by a view of the row, which would be a copy if rows are sharded.
  const at::Tensor rows = at::arange(weight.size(0), at::TensorOptions(at::kLong).device(weight.device()));
  weight.masked_fill_((rows == padding_idx_).unsqueeze(1), 0);
}

at::Tensor Embedding::compute(const at::Tensor& ids) const { return at::embedding(weight, ids, padding_idx_); }

LayerNorm::LayerNorm(std::int64_t size, double eps, bool with_bias, at::TensorOptions options)
    : weight(at::empty({size}, options)), size_(size), eps_(eps) {
  if (with_bias) bias = at::empty({size}, options);
  register_parameter("weight", weight);
  register_parameter("bias", bias);
  LayerNorm::reset_parameters();
}

void LayerNorm::reset_parameters() {
  reset_to(weight, 1);
  reset_to(bias, 0);
}

at::Tensor layer_norm(const at::Tensor& x, std::int64_t size, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  const bool mixed = !x.is_cpu() && weight.defined() && weight.scalar_type() != x.scalar_type();
  if (!mixed || (is_dtensor(x) && takes_gpu_kernel(GpuKernel::layer_norm, x.device().type())))
    return at::layer_norm(x, {size}, weight, bias, eps);
  return at::layer_norm(x.to(weight.scalar_type()), {size}, weight, bias, eps).to(x.scalar_type());
}

at::Tensor LayerNorm::compute(const at::Tensor& x) const { return layer_norm(x, size_, weight, bias, eps_); }

RMSNorm::RMSNorm(std::int64_t size, double eps, at::TensorOptions options)
    : weight(at::empty({size}, options)), size_(size), eps_(eps) {
  register_parameter("weight", weight);
  RMSNorm::reset_parameters();
}

void RMSNorm::reset_parameters() { reset_to(weight, 1); }

at::Tensor RMSNorm::compute(const at::Tensor& x) const { return at::rms_norm(x, {size_}, weight, eps_); }

}  // namespace dtensor::nn
