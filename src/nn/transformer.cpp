// Attention, MLP and the pre-norm block.
#include <ATen/ATen.h>

#include "dtensor/attention.h"
#include "dtensor/nn.h"
#include "internal/activations.h"

namespace dtensor::nn {
namespace {

Attention::Options checked(Attention::Options o) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  TORCH_CHECK(o.heads > 0 && o.kv_heads > 0 && o.hidden % o.heads == 0 && o.heads % o.kv_heads == 0,
              "Attention: expected hidden to be a multiple of heads, and heads of kv_heads, got hidden ", o.hidden,
              ", heads ", o.heads, " and kv_heads ", o.kv_heads);
  TORCH_CHECK(o.rope >= 0 && (o.rope == 0 || o.hidden / o.heads % 2 == 0),
              "Attention: expected rope >= 0 and heads of an even size, got rope ", o.rope, " and size ",
              o.hidden / o.heads);
  return o;
}

std::int64_t kv_size(const Attention::Options& o) { return o.hidden / o.heads * o.kv_heads; }

// [batch, sequence, heads * size] -> [batch, heads, sequence, size]
at::Tensor split_heads(const at::Tensor& x, std::int64_t heads) {
  return x.unflatten(-1, {heads, x.size(-1) / heads}).transpose(1, 2);
}

std::optional<Rope> rope_of(const Attention::Options& o) {
  if (o.rope == 0) return std::nullopt;
  return Rope({.size = o.hidden / o.heads, .base = o.rope});
}

}  // namespace

Attention::Attention(const Options& options)
    : q_proj(options.hidden, options.hidden, options.bias, options.tensor),
      k_proj(options.hidden, kv_size(checked(options)), options.bias, options.tensor),
      v_proj(options.hidden, kv_size(checked(options)), options.bias, options.tensor),
      o_proj(options.hidden, options.hidden, options.bias, options.tensor),
      options_(checked(options)),
      rope_(rope_of(options_)) {
  register_module("q_proj", q_proj);
  register_module("k_proj", k_proj);
  register_module("v_proj", v_proj);
  register_module("o_proj", o_proj);
}

at::Tensor Attention::compute(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& documents) const {
  at::Tensor q = split_heads(q_proj(x), options_.heads), k = split_heads(k_proj(x), options_.kv_heads);
  if (rope_) {
    const Rope::Angles angles = rope_->angles(0, x.size(1), q.options());
    q = rope_->rotate(q, angles), k = rope_->rotate(k, angles);
  }
  const at::Tensor v = split_heads(v_proj(x), options_.kv_heads);
  const auto given = mask.defined() ? std::optional(mask) : std::nullopt;
  const bool causal = options_.causal && !mask.defined(), grouped = options_.kv_heads < options_.heads;
  const at::Tensor y = documents.defined()
                           ? attention(q, k, v, {.mask = mask, .causal = causal, .row_cu_seqlens = documents})
                           : at::scaled_dot_product_attention(q, k, v, given, 0.0, causal, std::nullopt, grouped);
  return o_proj(y.transpose(1, 2).flatten(2, 3));
}

MLP::MLP(const Options& options)
    : gate_proj(options.gated || is_gated(options.activation)
                    ? std::make_unique<Linear>(options.hidden, options.ffn, options.bias, options.tensor)
                    : nullptr),
      up_proj(options.hidden, options.ffn, options.bias, options.tensor),
      down_proj(options.ffn, options.hidden, options.bias, options.tensor),
      activation_(options.activation) {
  if (gate_proj) register_module("gate_proj", *gate_proj);
  register_module("up_proj", up_proj);
  register_module("down_proj", down_proj);
}

at::Tensor MLP::compute(const at::Tensor& x) const {
  const at::Tensor up = up_proj(x);
  return down_proj(gate_proj ? activate_gated((*gate_proj)(x), up, activation_) : activate(up, activation_));
}

Block::Block(const Attention::Options& attention, const MLP::Options& m)
    : ln1(attention.hidden, 1e-5, true, attention.tensor),
      attn(attention),
      ln2(attention.hidden, 1e-5, true, attention.tensor),
      mlp(m) {
  register_module("ln1", ln1);
  register_module("attn", attn);
  register_module("ln2", ln2);
  register_module("mlp", mlp);
}

at::Tensor Block::compute(const at::Tensor& x) const {
  const at::Tensor h = x + attn(ln1(x));
  return h + mlp(ln2(h));
}

}  // namespace dtensor::nn
