// The model of the trainer: a decoder for one device. It does not depend on meshes, so the one-device reference and the
// distributed run call the same function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/moe.h"
#include "dtensor/nn.h"
#include "dtensor/nn/decoder.h"
#include "dtensor/pipeline.h"
#include "train/model/block_run.h"

namespace train {

// A decoder with layer norms, exact GELU, no biases of projections and no learned positions, and how it is trained.
struct GptConfig : dtensor::nn::DecoderConfig {
  GptConfig();
  bool rope = false;        // Rotary positions; without them, no positions.
  bool documents = false;   // Attention does not cross documents.
  bool fused_loss = false;  // The loss computes the logits (linear_cross_entropy).
  BlockRun run = {};        // Of each block.
  // Of experts, if they replace the MLP of each block.
  dtensor::DispatchKind dispatch = dtensor::DispatchKind::all_to_all;
  dtensor::CapacityOptions capacity = {};
};

GptConfig tiny();      // The reference transformer of the recorded run (tests/train/oracle.h).
GptConfig gpt_153m();  // Embedding(50257, 1024), 4 blocks.

// The layers of a decoder, and its outputs as the loss needs them.
class Gpt final : public dtensor::nn::Callable<Gpt> {
 public:
  explicit Gpt(const GptConfig& config);
  const GptConfig& config() const { return config_; }
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
  const std::vector<std::unique_ptr<dtensor::nn::DecoderBlock>>& blocks() const { return decoder_.blocks(); }

 private:
  using Tensors = dtensor::pipeline::Tensors;
  Tensors run_embedding(const Tensors& in) const;
  Tensors run_block(const dtensor::nn::DecoderBlock& block, const Tensors& in) const;
  Tensors run_heads(const Tensors& in) const;

  GptConfig config_;
  dtensor::nn::Decoder decoder_;
};

std::int64_t parameter_count(GptConfig config);

// The cross entropy over all tokens, mean or sum, a scalar in at least float: in bfloat16 a loss of 5.7 is a multiple
// of 2^-5. targets: int64 [batch, sequence].
at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& targets, bool mean = true);

}  // namespace train
