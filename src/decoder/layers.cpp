// Norms, projections with adapters, and the MLP.
#include <ATen/ATen.h>

#include "decoder/parts.h"
#include "dtensor/debug.h"
#include "internal/gated_product.h"

namespace dtensor::nn {
namespace {

at::Tensor activated(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::silu:
      return at::silu(x);
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::relu:
      return at::relu(x);
    default:
      TORCH_CHECK(false, "FeedForward: unknown activation ", static_cast<int>(kind));
  }
}

at::Tensor gated(Activation kind, const at::Tensor& gate, const at::Tensor& up) {
  if (kind == Activation::relu) return at::relu(gate) * up;  // saves its result, which the product saves too
  return gated_product(kind == Activation::silu   ? GateKind::silu
                       : kind == Activation::gelu ? GateKind::gelu
                                                  : GateKind::gelu_tanh,
                       gate, up);
}

}  // namespace

Norm::Norm(std::int64_t size, NormKind kind, double eps, at::TensorOptions options)
    : weight(at::empty({size}, options)), size_(size), kind_(kind), eps_(eps) {
  if (kind == NormKind::layer) bias = at::empty({size}, options);
  register_parameter("weight", weight);
  register_parameter("bias", bias);
  Norm::reset_parameters();
}

void Norm::reset_parameters() {
  reset_to(weight, kind_ == NormKind::rms_offset ? 0 : 1);
  reset_to(bias, 0);
}

at::Tensor Norm::compute(const at::Tensor& x) const {
  if (kind_ == NormKind::layer) return layer_norm(x, size_, weight, bias, eps_);
  return at::rms_norm(x, {size_}, kind_ == NormKind::rms ? weight : weight + 1, eps_);
}

Projection::Projection(std::int64_t in, std::int64_t out, bool with_bias, at::TensorOptions options)
    : weight(at::empty({out, in}, options)) {
  if (with_bias) bias = at::empty({out}, options);
  register_parameter("weight", weight);
  register_parameter("bias", bias);
  register_parameter("lora_a", lora_a);
  register_parameter("lora_b", lora_b);
  Projection::reset_parameters();
}

void Projection::adapt(std::int64_t rank, double alpha) {
  TORCH_CHECK(rank > 0, "Projection: expected an adapter rank > 0, got ", rank);
  TORCH_CHECK(!is_dtensor(weight), "Projection: adapters must be added before the model is distributed");
  lora_a = at::empty({rank, weight.size(1)}, weight.options()).requires_grad_();
  lora_b = at::empty({weight.size(0), rank}, weight.options()).requires_grad_();
  lora_scale_ = alpha / static_cast<double>(rank);
  reset_adapter();
}

void Projection::reset_adapter() {
  reset_uniform(lora_a, weight.size(1));
  reset_to(lora_b, 0);
}

void Projection::reset_parameters() {
  reset_uniform(weight, weight.size(1));
  reset_uniform(bias, weight.size(1));
  reset_adapter();
}

// The adapter's inner dimension is replicated.
std::int64_t Projection::output_dim(const std::string& parameter) const { return parameter == "lora_a" ? -1 : 0; }
std::int64_t Projection::input_dim(const std::string& parameter) const { return parameter == "lora_b" ? -1 : 1; }

at::Tensor Projection::merged() const {
  return lora_a.defined() ? weight + lora_scale_ * at::mm(lora_b, lora_a) : weight;
}

at::Tensor Projection::compute(const at::Tensor& x) const {
  const at::Tensor y = at::linear(x, weight, bias);
  return lora_a.defined() ? y + lora_scale_ * at::linear(at::linear(x, lora_a), lora_b) : y;
}

FeedForward::FeedForward(const DecoderConfig& c)
    : activation_(c.activation),
      gate_proj_(c.gated ? std::make_unique<Projection>(c.hidden, c.ffn, c.mlp_bias, c.tensor) : nullptr),
      up_proj_(c.hidden, c.ffn, c.mlp_bias, c.tensor),
      down_proj_(c.ffn, c.hidden, c.mlp_bias, c.tensor) {
  if (gate_proj_) register_module("gate_proj", *gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

at::Tensor FeedForward::compute(const at::Tensor& x) const {
  const at::Tensor up = up_proj_(x);
  const at::Tensor inner = gate_proj_ ? gated(activation_, (*gate_proj_)(x), up) : activated(activation_, up);
  return down_proj_(inner);
}

}  // namespace dtensor::nn
