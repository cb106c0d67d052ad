// The model: a GPT in plain ATen, written for one device. It decides the parameters' names, shapes and initial
// distribution; it knows nothing of meshes, so the one-device reference and the distributed run call the same function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dtensor/moe.h"
#include "dtensor/nn.h"
#include "dtensor/pipeline.h"

namespace train {

// What takes the place of each block's MLP in a mixture of experts; hidden size and dtype are the model's.
struct ExpertConfig {
  dtensor::MoeOptions moe;
  dtensor::DispatchKind dispatch = dtensor::DispatchKind::all_to_all;
  dtensor::CapacityOptions capacity = {};
};

struct GptConfig {
  std::int64_t vocabulary = 257, hidden = 64, heads = 4, layers = 4, ffn = 256;
  std::int64_t kv_heads = 0;        // 0: heads; fewer: groups of query heads share keys and values
  bool rope = false;                // rotary positions (else there are none)
  bool documents = false;           // attention does not see beyond a document
  std::int64_t predict_tokens = 1;  // the next one, the one after it, ...: a head for each
  double layer_norm_eps = 1e-5;
  double dropout = 0;              // on the embedding and on each residual branch
  bool checkpoint_blocks = false;  // each block is computed again in backward
  at::TensorOptions tensor = {};   // of the parameters
  std::optional<ExpertConfig> experts = {};
};

GptConfig tiny();      // the reference transformer of tests/data/transformer.json
GptConfig gpt_153m();  // Embedding(50257, 1024), 4 blocks, no bias, exact GELU

class Mlp final : public dtensor::nn::Module {
 public:
  explicit Mlp(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  dtensor::nn::Linear ffn1_, ffn2_;
};

// x + attn(ln1(x)), then + mlp(ln2(x)), or experts in the place of the MLP.
class Block final : public dtensor::nn::Module {
 public:
  explicit Block(const GptConfig& config);
  // documents: undefined, or where each row's begin (Batch::documents). Returns the router's loss too, where it has
  // one.
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& documents = {}) const;

 private:
  double dropout_;
  dtensor::nn::LayerNorm ln1_;
  dtensor::nn::Attention attn_;
  dtensor::nn::LayerNorm ln2_;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<dtensor::MixtureOfExperts> moe_;
};

// Parameters as torch.nn would name them: wte.weight, h.0.attn.q_proj.weight, ..., ln.bias, lm_head.weight.
class Gpt final : public dtensor::nn::Module {
 public:
  explicit Gpt(const GptConfig& config);
  struct Output {
    std::vector<at::Tensor> logits;         // of each head, [batch, sequence, vocabulary]
    std::vector<at::Tensor> router_losses;  // scalars, to be added to the mean loss
  };
  // ids: int64 [batch, sequence]; documents as in Batch, where the model is made for them.
  Output run(const at::Tensor& ids, const at::Tensor& documents = {}) const;
  // The same as layers in a row, for the stages of a pipeline: the embedding takes the ids and the documents (if any),
  // a block the activation, the documents and the routers' losses so far, the heads put out their logits, and
  // these losses.
  std::vector<dtensor::pipeline::Layer> layers() const;
  at::Tensor forward(const at::Tensor& ids) const { return run(ids).logits.front(); }
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  std::vector<at::Tensor> run_block(const Block& block, const std::vector<at::Tensor>& in) const;

  GptConfig config_;
  dtensor::nn::Embedding wte_;
  std::vector<std::unique_ptr<Block>> blocks_;
  dtensor::nn::LayerNorm ln_;
  dtensor::nn::Linear lm_head_;
  std::vector<std::unique_ptr<dtensor::nn::Linear>> further_heads_;  // of the tokens after the next one
};

std::int64_t parameter_count(GptConfig config);

// The mean cross entropy over all tokens, a scalar, in float at least: a loss of 5.7 in bfloat16 is a multiple of 2^-5.
// targets: int64 [batch, sequence].
at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets);
// The mean of the heads' losses (multi-token prediction, arXiv:2404.19737, with linear heads): head d is to say the
// target d places later; the last d rows have none and do not count.
at::Tensor token_losses(const std::vector<at::Tensor>& logits, const at::Tensor& targets);

}  // namespace train
