// The model: a GPT in plain ATen, written for one device.
#include "model.h"

#include <ATen/ATen.h>

#include <cmath>

namespace train {

GptConfig tiny() { return {}; }

GptConfig gpt_153m() { return {.vocabulary = 50257, .hidden = 1024, .heads = 16, .layers = 4, .ffn = 4096}; }

namespace {

using Specs = std::vector<ParameterSpec>;

void add_linear(Specs& specs, const std::string& name, std::int64_t out, std::int64_t in) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  specs.push_back({name + ".weight", {out, in}, {Init::Kind::uniform, bound}});
}

void add_layer_norm(Specs& specs, const std::string& name, std::int64_t size) {
  specs.push_back({name + ".weight", {size}, {Init::Kind::constant, 1}});
  specs.push_back({name + ".bias", {size}, {Init::Kind::constant, 0}});
}

void add_block(Specs& specs, const std::string& name, const GptConfig& c) {
  add_layer_norm(specs, name + ".ln1", c.hidden);
  for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    add_linear(specs, name + ".attn." + projection, c.hidden, c.hidden);
  }
  add_layer_norm(specs, name + ".ln2", c.hidden);
  add_linear(specs, name + ".mlp.ffn1", c.ffn, c.hidden);
  add_linear(specs, name + ".mlp.ffn2", c.hidden, c.ffn);
}

std::string block_name(std::int64_t layer) { return "h." + std::to_string(layer); }

}  // namespace

std::vector<ParameterSpec> parameter_specs(const GptConfig& config) {
  Specs specs;
  specs.push_back({"wte.weight", {config.vocabulary, config.hidden}, {Init::Kind::normal, 1}});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) add_block(specs, block_name(layer), config);
  add_layer_norm(specs, "ln", config.hidden);
  add_linear(specs, "lm_head", config.vocabulary, config.hidden);
  return specs;
}

std::int64_t parameter_count(const GptConfig& config) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : parameter_specs(config)) count += c10::multiply_integers(spec.sizes);
  return count;
}

void Parameters::add(std::string name, at::Tensor tensor) {
  index_.emplace(name, tensors_.size());
  names_.push_back(std::move(name));
  tensors_.push_back(std::move(tensor));
}

const at::Tensor& Parameters::operator[](const std::string& name) const {
  const auto found = index_.find(name);
  TORCH_CHECK(found != index_.end(), "the model has no parameter named ", name);
  return tensors_[found->second];
}

std::vector<std::pair<std::string, at::Tensor*>> Parameters::slots(const std::string& prefix) {
  std::vector<std::pair<std::string, at::Tensor*>> slots;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (names_[i].rfind(prefix, 0) == 0) slots.emplace_back(names_[i], &tensors_[i]);
  }
  return slots;
}

namespace {

at::Tensor layer_norm(const GptConfig& c, const Parameters& p, const std::string& name, const at::Tensor& x) {
  return at::layer_norm(x, {c.hidden}, p[name + ".weight"], p[name + ".bias"], c.layer_norm_eps);
}

at::Tensor linear(const Parameters& p, const std::string& name, const at::Tensor& x) {
  return at::linear(x, p[name + ".weight"]);
}

at::Tensor dropout(const GptConfig& c, const at::Tensor& x) {
  return c.dropout > 0 ? at::dropout(x, c.dropout, /*train=*/true) : x;
}

// [batch, sequence, heads * size] -> [batch, heads, sequence, size]
at::Tensor split_heads(const GptConfig& c, const at::Tensor& x) {
  return x.view({x.size(0), x.size(1), c.heads, c.hidden / c.heads}).transpose(1, 2);
}

at::Tensor attention(const GptConfig& c, const Parameters& p, const std::string& name, const at::Tensor& x) {
  const at::Tensor q = split_heads(c, linear(p, name + ".q_proj", x));
  const at::Tensor k = split_heads(c, linear(p, name + ".k_proj", x));
  const at::Tensor v = split_heads(c, linear(p, name + ".v_proj", x));
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                        /*is_causal=*/true);
  return linear(p, name + ".o_proj", y.transpose(1, 2).reshape({x.size(0), x.size(1), c.hidden}));
}

at::Tensor mlp(const Parameters& p, const std::string& name, const at::Tensor& x) {
  return linear(p, name + ".ffn2", at::gelu(linear(p, name + ".ffn1", x)));
}

at::Tensor at_point(const ModelHooks& hooks, const std::string& point, const at::Tensor& x) {
  return hooks.at_point ? hooks.at_point(point, x) : x;
}

at::Tensor block(const GptConfig& c, const Parameters& p, const ModelHooks& hooks, const std::string& name,
                 const at::Tensor& x) {
  const at::Tensor to_attention = at_point(hooks, name + ".attn.in", layer_norm(c, p, name + ".ln1", x));
  const at::Tensor a = at_point(hooks, name + ".attn.out", attention(c, p, name + ".attn", to_attention));
  const at::Tensor h = x + dropout(c, a);
  const at::Tensor to_mlp = at_point(hooks, name + ".mlp.in", layer_norm(c, p, name + ".ln2", h));
  return h + dropout(c, at_point(hooks, name + ".mlp.out", mlp(p, name + ".mlp", to_mlp)));
}

at::Tensor run_block(const GptConfig& c, const Parameters& p, const ModelHooks& hooks, const std::string& name,
                     const at::Tensor& x) {
  if (!hooks.run_block) return block(c, p, hooks, name, x);
  // By value: it may run again when this function has returned.
  return hooks.run_block([c, p, hooks, name](const at::Tensor& y) { return block(c, p, hooks, name, y); }, x);
}

}  // namespace

at::Tensor gpt_logits(const GptConfig& config, const Parameters& p, const at::Tensor& ids, const ModelHooks& hooks) {
  at::Tensor h = dropout(config, at_point(hooks, "wte.out", at::embedding(p["wte.weight"], ids)));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) h = run_block(config, p, hooks, block_name(layer), h);
  return linear(p, "lm_head", at_point(hooks, "lm_head.in", layer_norm(config, p, "ln", h)));
}

at::Tensor gpt_loss(const GptConfig& config, const Parameters& p, const at::Tensor& ids, const at::Tensor& targets,
                    const LogitsHook& on_logits, const ModelHooks& hooks) {
  at::Tensor logits = gpt_logits(config, p, ids, hooks);
  if (on_logits) logits = on_logits(logits);
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace train
