// The model: a GPT in plain ATen, written for one device.
#include "train/model/model.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/nn/float8.h"

namespace train {

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

at::Tensor Mlp::forward(const at::Tensor& x) const { return ffn2_(at::gelu(ffn1_(x))); }

namespace {

std::unique_ptr<dtensor::MixtureOfExperts> make_experts(const GptConfig& c) {
  if (!c.experts) return nullptr;
  auto options = c.experts->moe;
  options.hidden = c.hidden;
  options.tensor = c.tensor;
  auto layer = std::make_unique<dtensor::MixtureOfExperts>(options);
  layer->set_dispatch(c.experts->dispatch, c.experts->capacity);
  return layer;
}

}  // namespace

Block::Block(const GptConfig& c)
    : dropout_(c.dropout),
      ln1_(c.hidden, c.layer_norm_eps, /*bias=*/true, c.tensor),
      attn_({.hidden = c.hidden,
             .heads = c.heads,
             .kv_heads = c.kv_heads,
             .rope = c.rope ? 10000.0 : 0.0,
             .tensor = c.tensor}),
      ln2_(c.hidden, c.layer_norm_eps, /*bias=*/true, c.tensor),
      mlp_(c.experts ? nullptr : std::make_unique<Mlp>(c)),
      moe_(make_experts(c)) {
  register_module("ln1", ln1_);
  register_module("attn", attn_);
  register_module("ln2", ln2_);
  if (mlp_) register_module("mlp", *mlp_);
  if (moe_) register_module("moe", *moe_);
}

std::vector<at::Tensor> Block::forward(const at::Tensor& x, const at::Tensor& documents) const {
  const at::Tensor h = x + dropout(dropout_, attn_(ln1_(x), /*mask=*/at::Tensor(), documents));
  const auto normal = ln2_(h);
  const auto made = moe_ ? moe_->call_with_loss(normal) : dtensor::MixtureOfExperts::Output{(*mlp_)(normal), {}};
  const auto y = h + dropout(dropout_, made.y);
  return made.loss.defined() ? std::vector{y, made.loss} : std::vector{y};
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
  for (std::int64_t d = 1; d < c.predict_tokens; ++d) {
    further_heads_.push_back(std::make_unique<dtensor::nn::Linear>(c.hidden, c.vocabulary, /*bias=*/false, c.tensor));
    register_module("further_heads." + std::to_string(d - 1), *further_heads_.back());
  }
}

std::vector<at::Tensor> Gpt::run_block(const Block& block, const std::vector<at::Tensor>& in) const {
  std::optional<dtensor::nn::Float8Scope> float8;
  if (config_.float8) float8.emplace();
  const auto run = [&block](const std::vector<at::Tensor>& x) {
    return block(x[0], x.size() > 1 ? x[1] : at::Tensor());
  };
  const std::vector<at::Tensor> seen(in.begin(), in.begin() + (config_.documents ? 2 : 1));
  auto out = config_.checkpoint_blocks ? dtensor::checkpoint(run, seen) : run(seen);
  out.insert(out.begin() + 1, in.begin() + 1, in.end());
  return out;
}

std::vector<at::Tensor> Gpt::run_heads(const at::Tensor& x) const {
  const at::Tensor h = ln_(x);
  std::vector<at::Tensor> out;
  if (config_.fused_loss) out = {h, lm_head_.weight};
  if (!config_.fused_loss) out = {lm_head_(h)};
  for (const auto& head : further_heads_) out.push_back(config_.fused_loss ? head->weight : (*head)(h));
  return out;
}

// The cost of a layer is the number of parameters that a token uses.
std::vector<dtensor::pipeline::Layer> Gpt::layers() const {
  using Tensors = dtensor::pipeline::Tensors;
  const auto embed = [this](const Tensors& in) {
    Tensors out{dropout(config_.dropout, wte_(in[0]))};
    out.insert(out.end(), in.begin() + 1, in.end());  // The documents.
    return out;
  };
  const auto head = [this](const Tensors& in) {
    auto out = run_heads(in[0]);
    out.insert(out.end(), in.begin() + (config_.documents ? 2 : 1), in.end());
    return out;
  };
  const auto hidden = static_cast<double>(config_.hidden);
  std::vector<dtensor::pipeline::Layer> layers{{"wte", embed, hidden}};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    layers.push_back({"h." + std::to_string(i),
                      [this, &block = *blocks_[i]](const Tensors& in) { return run_block(block, in); },
                      hidden * (4 * hidden + 2 * static_cast<double>(config_.ffn))});
  }
  layers.push_back({"lm_head", head, hidden * static_cast<double>(config_.vocabulary * config_.predict_tokens)});
  return layers;
}

Gpt::Output Gpt::forward(const at::Tensor& ids, const at::Tensor& documents) const {
  TORCH_CHECK(documents.defined() == config_.documents, "the model ",
              config_.documents ? "needs the begins of documents" : "does not support documents");
  dtensor::pipeline::Tensors values{ids};
  if (documents.defined()) values.push_back(documents);
  for (const dtensor::pipeline::Layer& layer : layers()) values = layer.forward(values);
  const auto routers = values.begin() + loss_operands();
  return {{values.begin(), routers}, {routers, values.end()}};
}

std::int64_t parameter_count(GptConfig config) {
  config.tensor = config.tensor.device(at::kMeta);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : Gpt(config).parameters()) count += parameter.numel();
  return count;
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets, bool mean) {
  const bool narrow = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  return at::cross_entropy_loss(logits.flatten(0, 1).to(narrow ? at::kFloat : logits.scalar_type()), targets.flatten(),
                                {}, mean ? at::Reduction::Mean : at::Reduction::Sum);
}

}  // namespace train
