// A language model whose MLPs are mixtures of experts, in plain ATen and for one device: it knows no mesh.
#pragma once

#include <memory>
#include <vector>

#include "dtensor/moe.h"
#include "dtensor/nn.h"

namespace moe_example {

struct ModelConfig {
  std::int64_t vocabulary = 257, hidden = 64, heads = 4, layers = 4;
  dtensor::MoeOptions moe;
};

class Block final : public dtensor::nn::Module {
 public:
  explicit Block(const ModelConfig& config);
  // Adds the router's loss to `losses`.
  at::Tensor forward(const at::Tensor& x, std::vector<at::Tensor>& losses);

 private:
  dtensor::nn::LayerNorm ln1_;
  dtensor::nn::Attention attn_;
  dtensor::nn::LayerNorm ln2_;
  dtensor::MixtureOfExperts moe_;
};

class Model final : public dtensor::nn::Module {
 public:
  explicit Model(const ModelConfig& config);
  // ids [batch, sequence] to logits [batch, sequence, vocabulary].
  at::Tensor forward(const at::Tensor& ids, std::vector<at::Tensor>& losses);

 private:
  dtensor::nn::Embedding wte_;
  std::vector<std::unique_ptr<Block>> blocks_;
  dtensor::nn::LayerNorm ln_;
  dtensor::nn::Linear lm_head_;
};

}  // namespace moe_example
