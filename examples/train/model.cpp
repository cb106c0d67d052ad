// The model: a GPT in plain ATen, written for one device.
#include "model.h"

#include <ATen/ATen.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/debug.h"

namespace train {

using dtensor::ModuleScope;

GptConfig tiny() { return {}; }

GptConfig gpt_153m() { return {.vocabulary = 50257, .hidden = 1024, .heads = 16, .layers = 4, .ffn = 4096}; }

namespace {

at::Tensor dropout(double probability, const at::Tensor& x) {
  return probability > 0 ? at::dropout(x, probability, /*train=*/true) : x;
}

}  // namespace

Mlp::Mlp(const GptConfig& c)
    : ffn1_(c.hidden, c.ffn, /*bias=*/false, c.tensor), ffn2_(c.ffn, c.hidden, /*bias=*/false, c.tensor) {
  register_module("ffn1", ffn1_);
  register_module("ffn2", ffn2_);
}

at::Tensor Mlp::forward(const at::Tensor& x) const {
  const ModuleScope scope(name());
  return constrain("out", ffn2_.forward(at::gelu(ffn1_.forward(constrain("in", x)))));
}

Block::Block(const GptConfig& c)
    : dropout_(c.dropout),
      ln1_(c.hidden, c.layer_norm_eps, /*bias=*/true, c.tensor),
      attn_({.hidden = c.hidden, .heads = c.heads, .tensor = c.tensor}),
      ln2_(c.hidden, c.layer_norm_eps, /*bias=*/true, c.tensor),
      mlp_(c) {
  register_module("ln1", ln1_);
  register_module("attn", attn_);
  register_module("ln2", ln2_);
  register_module("mlp", mlp_);
}

at::Tensor Block::forward(const at::Tensor& input) const {
  const ModuleScope scope(name());
  const at::Tensor x = constrain("in", input);
  const at::Tensor h = x + dropout(dropout_, attn_.forward(ln1_.forward(x)));
  return constrain("out", h + dropout(dropout_, mlp_.forward(ln2_.forward(h))));
}

Gpt::Gpt(const GptConfig& c)
    : config_(c),
      wte_(c.vocabulary, c.hidden, /*padding_idx=*/-1, c.tensor),
      ln_(c.hidden, c.layer_norm_eps, /*bias=*/true, c.tensor),
      lm_head_(c.hidden, c.vocabulary, /*bias=*/false, c.tensor) {
  register_module("wte", wte_);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    blocks_.push_back(std::make_unique<Block>(c));
    register_module("h." + std::to_string(i), *blocks_.back());
  }
  register_module("ln", ln_);
  register_module("lm_head", lm_head_);
}

at::Tensor Gpt::forward(const at::Tensor& ids) const {
  at::Tensor x = dropout(config_.dropout, wte_.forward(constrain("in", ids)));
  for (const auto& block : blocks_) {
    const auto run = [&block = *block](const at::Tensor& y) { return block.forward(y); };
    x = config_.checkpoint_blocks ? dtensor::checkpoint(run, x) : run(x);
  }
  return constrain("out", lm_head_.forward(ln_.forward(x)));
}

std::int64_t parameter_count(GptConfig config) {
  config.tensor = config.tensor.device(at::kMeta);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : Gpt(config).parameters()) count += parameter.numel();
  return count;
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace train
