// The model: a GPT in plain ATen, written for one device. It defines names, sizes and initial values of the parameters.
// It does not depend on meshes, so the one-device reference and the distributed run call the same function.
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

// Experts that replace the MLP of each block; hidden size and dtype are those of the model.
struct ExpertConfig {
  dtensor::MoeOptions moe;
  dtensor::DispatchKind dispatch = dtensor::DispatchKind::all_to_all;
  dtensor::CapacityOptions capacity = {};
};

struct GptConfig {
  std::int64_t vocabulary = 257, hidden = 64, heads = 4, layers = 4, ffn = 256;
  std::int64_t kv_heads = 0;        // 0: heads; fewer: groups of query heads share keys and values.
  bool rope = false;                // Rotary positions; without them, no positions.
  bool documents = false;           // Attention does not cross documents.
  std::int64_t predict_tokens = 1;  // One head for each of the next tokens.
  bool fused_loss = false;          // The loss computes the logits (linear_cross_entropy).
  double layer_norm_eps = 1e-5;
  double dropout = 0;              // On the embedding and on each residual branch.
  bool checkpoint_blocks = false;  // Recomputes each block in backward.
  bool float8 = false;             // Products of the blocks.
  at::TensorOptions tensor = {};   // Of the parameters.
  std::optional<ExpertConfig> experts = {};
};

GptConfig tiny();      // The reference transformer of the recorded run (tests/train/oracle.h).
GptConfig gpt_153m();  // Embedding(50257, 1024), 4 blocks, no bias, exact GELU.

class Mlp final : public dtensor::nn::Callable<Mlp> {
 public:
  explicit Mlp(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  dtensor::nn::Linear ffn1_, ffn2_;
};

// x + attn(ln1(x)), then + mlp(ln2(x)), or experts instead of the MLP.
class Block final : public dtensor::nn::Callable<Block> {
 public:
  explicit Block(const GptConfig& config);
  // documents: undefined, or the begins of each row's documents (Batch::documents). Also returns the router's loss, if
  // any.
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
class Gpt final : public dtensor::nn::Callable<Gpt> {
 public:
  explicit Gpt(const GptConfig& config);
  struct Output {
    // Operands of the loss: logits of each head, [batch, sequence, vocabulary]. With fused_loss: the last activation,
    // [batch, sequence, hidden], and the weight of each head.
    std::vector<at::Tensor> logits;
    std::vector<at::Tensor> router_losses;  // Scalars that are added to the mean loss.
    // The operands of the loss, of which FsdpOptions' output_dtype is the dtype.
    dtensor::nn::TensorSlots tensors() {
      dtensor::nn::TensorSlots slots;
      for (at::Tensor& tensor : logits) slots.push_back(&tensor);
      return slots;
    }
  };
  // ids: int64 [batch, sequence]; documents as in Batch, if the model has them.
  Output forward(const at::Tensor& ids, const at::Tensor& documents = {}) const;
  // The same as a list of layers, for pipeline stages. The embedding takes the ids and the documents (if any). A block
  // takes the activation, the documents and the accumulated router losses. The heads return their logits and these
  // losses.
  std::vector<dtensor::pipeline::Layer> layers() const;
  // The number of tensors that the layers give to the loss.
  std::int64_t loss_operands() const { return config_.predict_tokens + (config_.fused_loss ? 1 : 0); }
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  std::vector<at::Tensor> run_block(const Block& block, const std::vector<at::Tensor>& in) const;
  std::vector<at::Tensor> run_heads(const at::Tensor& x) const;

  GptConfig config_;
  dtensor::nn::Embedding wte_;
  std::vector<std::unique_ptr<Block>> blocks_;
  dtensor::nn::LayerNorm ln_;
  dtensor::nn::Linear lm_head_;
  std::vector<std::unique_ptr<dtensor::nn::Linear>> further_heads_;  // Of the tokens after the next one.
};

std::int64_t parameter_count(GptConfig config);

// The cross entropy over all tokens, mean or sum, a scalar in at least float: in bfloat16 a loss of 5.7 is a multiple
// of 2^-5. targets: int64 [batch, sequence].
at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets, bool mean = true);

}  // namespace train
