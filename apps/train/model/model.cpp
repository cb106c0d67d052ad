// The model of the trainer: a decoder for one device.
#include "train/model/model.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

namespace train {

GptConfig::GptConfig() {
  vocabulary = 257, hidden = 64, heads = 4, layers = 4, ffn = 256;
  norm = dtensor::nn::NormKind::layer, norm_eps = 1e-5;
  activation = dtensor::nn::Activation::gelu, gated = false;
}

GptConfig tiny() { return {}; }

GptConfig gpt_153m() {
  GptConfig config;
  config.vocabulary = 50257, config.hidden = 1024, config.heads = 16, config.ffn = 4096;
  return config;
}

namespace {

dtensor::nn::DecoderConfig decoder_config(GptConfig c) {
  if (c.rope) c.ropes = {{.size = c.hidden / c.heads, .base = 10000}};
  c.layer.assign(static_cast<std::size_t>(c.layers), {.rope = c.rope ? 0 : -1, .experts = c.experts.has_value()});
  return c;
}

}  // namespace

Gpt::Gpt(const GptConfig& config) : config_(config), decoder_(decoder_config(config)) {
  for (const auto& [name, layer] : decoder_.children()) register_module(name, *layer);
  for (auto* layer : dtensor::moe_layers(*this)) layer->set_dispatch(config.dispatch, config.capacity);
}

Gpt::Tensors Gpt::run_embedding(const Tensors& in) const {
  Tensors out{decoder_.embed(in[0])};
  out.insert(out.end(), in.begin() + 1, in.end());  // The documents.
  return out;
}

Gpt::Tensors Gpt::run_block(const dtensor::nn::DecoderBlock& block, const Tensors& in) const {
  auto pass = decoder_.pass(in[0].size(1), in[0].options());
  if (config_.documents) pass.documents = in[1];
  const auto made = train::run_block(block, in[0], pass, config_.run);
  Tensors out{made.y};
  out.insert(out.end(), in.begin() + 1, in.end());
  if (made.loss.defined()) out.push_back(made.loss);
  return out;
}

Gpt::Tensors Gpt::run_heads(const Tensors& in) const {
  const at::Tensor h = decoder_.norm(in[0]);
  Tensors out;
  if (config_.fused_loss) out.push_back(h);
  for (std::int64_t ahead = 0; ahead < config_.predict_tokens; ++ahead) {
    out.push_back(config_.fused_loss ? decoder_.head_weight(ahead) : decoder_.head(h, ahead));
  }
  out.insert(out.end(), in.begin() + (config_.documents ? 2 : 1), in.end());
  return out;
}

// The cost of a layer is the number of parameters that a token uses.
std::vector<dtensor::pipeline::Layer> Gpt::layers() const {
  const auto hidden = static_cast<double>(config_.hidden);
  std::vector<dtensor::pipeline::Layer> layers{
      {"embed", [this](const Tensors& in) { return run_embedding(in); }, hidden}};
  for (std::size_t i = 0; i < blocks().size(); ++i) {
    layers.push_back({"layers." + std::to_string(i),
                      [this, &block = *blocks()[i]](const Tensors& in) { return run_block(block, in); },
                      hidden * (4 * hidden + 2 * static_cast<double>(config_.ffn))});
  }
  layers.push_back({"lm_head", [this](const Tensors& in) { return run_heads(in); },
                    hidden * static_cast<double>(config_.vocabulary * config_.predict_tokens)});
  return layers;
}

Gpt::Output Gpt::forward(const at::Tensor& ids, const at::Tensor& documents) const {
  TORCH_CHECK(documents.defined() == config_.documents, "the model ",
              config_.documents ? "needs the begins of documents" : "does not support documents");
  Tensors values{ids};
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
