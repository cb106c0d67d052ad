// A language model whose MLPs are mixtures of experts, in plain ATen and for one device.
#include "model.h"

#include <ATen/ATen.h>

namespace moe_example {

using dtensor::nn::Attention;

Block::Block(const ModelConfig& c)
    : ln1_(c.hidden, 1e-5, true, c.moe.tensor),
      attn_(Attention::Options{.hidden = c.hidden, .heads = c.heads, .tensor = c.moe.tensor}),
      ln2_(c.hidden, 1e-5, true, c.moe.tensor),
      moe_(c.moe) {
  register_module("ln1", ln1_);
  register_module("attn", attn_);
  register_module("ln2", ln2_);
  register_module("moe", moe_);
}

at::Tensor Block::forward(const at::Tensor& x, std::vector<at::Tensor>& losses) {
  const at::Tensor h = x + attn_.forward(ln1_.forward(x));
  const auto out = moe_.run(ln2_.forward(h));
  if (out.loss.defined()) losses.push_back(out.loss);
  return h + out.y;
}

Model::Model(const ModelConfig& c)
    : wte_(c.vocabulary, c.hidden, -1, c.moe.tensor),
      ln_(c.hidden, 1e-5, true, c.moe.tensor),
      lm_head_(c.hidden, c.vocabulary, /*bias=*/false, c.moe.tensor) {
  register_module("wte", wte_);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    blocks_.push_back(std::make_unique<Block>(c));
    register_module("h." + std::to_string(i), *blocks_.back());
  }
  register_module("ln", ln_);
  register_module("lm_head", lm_head_);
}

at::Tensor Model::forward(const at::Tensor& ids, std::vector<at::Tensor>& losses) {
  at::Tensor h = wte_.forward(ids);
  for (const auto& block : blocks_) h = block->forward(h, losses);
  return lm_head_.forward(ln_.forward(h));
}

}  // namespace moe_example
