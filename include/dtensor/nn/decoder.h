// Decoder-only language models from a configuration: Llama, Mistral, Qwen, Gemma, Mixtral, DeepSeek-V3, GPT-2 and
// similar models are configurations of one structure. Written in regular ATen calls for one device;
// tensor_parallel_plan(), fully_shard() and apply_expert_parallel() distribute its parameters.
//
// Names: embed.weight, positions.weight, layers.I.attn_norm.weight, layers.I.attn.{q,k,v,o}_proj.weight,
// layers.I.mlp_norm.weight, layers.I.mlp.{gate,up,down}_proj.weight, layers.I.moe.*, norm.weight, lm_head.weight,
// further_heads.I.weight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/moe.h"
#include "dtensor/nn.h"
#include "dtensor/parallelize.h"
#include "dtensor/placement.h"

namespace dtensor::nn {

// The keys and values of previous tokens, in memory that is allocated once for `capacity` tokens.
//
// A cache belongs to one rank and holds its local sequences and heads. Attention uses it locally, so generating a token
// needs no sharding decision and no collective besides those of the surrounding layers. If a sequence axis shards the
// tokens, each layer needs one all_gather.
//
// A copy has its own memory of the same capacity, so one prefix can be continued in several ways. A cache with
// tokens accepts only further ones of the same sequences in the same placements; an empty one (truncate(0)) accepts
// any.
class DTENSOR_API KVCache {
 public:
  // `capacity`: maximum number of tokens per sequence. Memory is allocated when a layer first appends. `sequence_axis`:
  // name of a mesh axis of n ranks that shards tokens cyclically, token p on rank p % n. A sequence may then be n times
  // as long. It is an error if the axis splits the batch or the heads. "": each rank stores all tokens.
  KVCache(std::int64_t layers, std::int64_t capacity, std::string sequence_axis = "");
  KVCache(const KVCache& other);
  KVCache(KVCache&&) noexcept = default;
  KVCache& operator=(const KVCache& other) { return *this = KVCache(other); }
  KVCache& operator=(KVCache&&) noexcept = default;
  ~KVCache() = default;

  // Arguments of the constructor.
  std::int64_t layers() const { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length() const { return length_; }  // number of tokens in every layer
  std::int64_t bytes() const;                      // allocated on this rank

  // Appends local keys [batch, heads, n, E] and values [batch, heads, n, F] of the tokens from length() on. Returns
  // views of all tokens so far (with a sequence axis, of those of this rank). Throws beyond the capacity, and if the
  // sizes differ from those of previous tokens.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  void advance(std::int64_t count) { length_ += count; }  // after all layers have appended
  // Removes the tokens after the first `length`.
  void truncate(std::int64_t length);

  // Keys and values of all tokens: [batch, heads, length, E]. DTensors if attention ran on a mesh. Collective if a
  // sequence axis shards the tokens.
  at::Tensor keys(std::int64_t layer) const;
  at::Tensor values(std::int64_t layer) const;

 private:
  friend class Decoder;
  friend class DecoderAttention;
  // Called by attention that runs on a mesh: mesh, placements and global sizes of what this rank appends. Throws on all
  // ranks if cached tokens have another layout.
  void set_layout(std::int64_t layer, const DeviceMesh& mesh, Placements placements, std::int64_t batch,
                  std::int64_t heads);
  // Called by attention of regular tensors: this rank stores all tokens. Throws if cached tokens are on a mesh.
  void set_layout(std::int64_t layer);
  // The placements of the layout; empty without one.
  const Placements& placements(std::int64_t layer) const { return entries_[position(layer)].placements; }
  // append() of DTensors, in any placements. The results have those of the layout.
  std::pair<at::Tensor, at::Tensor> append_placed(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  // The ranks that share the layer's tokens; undefined if each rank stores all.
  const Communicator& sequence_group(std::int64_t layer) const;

  struct Entry {
    at::Tensor keys, values;  // [batch, heads, capacity, E or F]
    DeviceMesh mesh;
    Placements placements;
    std::int64_t batch = 0, heads = 0;
    Communicator sequence_group;
  };
  at::Tensor full(const Entry& entry, const at::Tensor& kept) const;
  std::size_t position(std::int64_t layer) const;
  // Whether the entry's memory fits them.
  static bool is_kept(const Entry& entry, const at::Tensor& keys, const at::Tensor& values);

  std::vector<Entry> entries_;
  std::int64_t capacity_, length_ = 0;
  std::string sequence_axis_;
};

// Formula of a norm.
enum class NormKind : std::uint8_t {
  rms,         // x / rms(x) * w (arXiv:1910.07467)
  rms_offset,  // x / rms(x) * (1 + w), as in Gemma
  layer,       // LayerNorm, with a bias
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): x is projected to `kv_rank` latent features, from which
// the keys and values of each head are computed. It is also projected to `rope_size` features of a rotated key that all
// heads share.
struct LatentAttention {
  std::int64_t q_rank = 0;  // latent features of queries; 0: none, queries are projected directly
  // Latent features of keys and values; sizes of a head's rotated part, of its other part, and of its values.
  std::int64_t kv_rank = 0, rope_size = 0, nope_size = 0, value_size = 0;
};

// Low-rank adapters of linear layers.
struct LoraOptions {
  std::int64_t rank = 0;  // 0: none
  // The adapter's output is scaled by alpha / rank.
  double alpha = 1;
  std::vector<std::string> targets = {"q_proj", "v_proj"};  // last names of the adapted projections
};

// Configuration of a decoder.
struct DTENSOR_API DecoderConfig {
  // Vocabulary size, features of a token, number of layers, inner features of the MLP.
  std::int64_t vocabulary = 0, hidden = 0, layers = 0, ffn = 0;
  std::int64_t heads = 1, kv_heads = 0;  // kv_heads 0: `heads`; fewer: grouped queries
  std::int64_t head_size = 0;            // 0: hidden / heads
  std::int64_t learned_positions = 0;    // rows of a learned position embedding; 0: none
  // Kind of all norms, and the epsilon that is added to the mean square.
  NormKind norm = NormKind::rms;
  double norm_eps = 1e-6;
  bool post_norms = false;  // norms of attention and MLP outputs too (Gemma 2 and 3)
  bool qk_norm = false;     // norms of each head's query and key (Qwen 3, Gemma 3)
  // Whether projections have biases.
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  // Activation function of the MLP: silu, gelu, gelu_tanh or relu.
  Activation activation = Activation::silu;
  bool gated = true;                                // down(activation(gate(x)) * up(x)); else down(activation(up(x)))
  bool tied = false;                                // the head's weight is the embedding's
  double embedding_scale = 1;                       // factor of the embedding, rounded to its dtype (Gemma)
  double attention_scale = 0;                       // factor of scores; 0: 1 / sqrt(head_size)
  double attention_softcap = 0, logit_softcap = 0;  // c tanh(x / c) of scores, of logits; 0: none
  std::vector<RopeOptions> ropes = {};              // indexed by Layer::rope
  // Options that differ between layers.
  struct Layer {
    std::int64_t window = 0;  // > 0: a token attends to the last `window` tokens, itself included
    std::int64_t rope = 0;    // index into `ropes`; -1: none
    bool experts = false;     // experts instead of the MLP
  };
  std::vector<Layer> layer = {};  // one per layer; empty: defaults, without rope if `ropes` is empty
  // Replaces the projections to heads.
  std::optional<LatentAttention> latent = {};
  std::optional<MoeOptions> experts = {};  // its hidden and tensor are set from the model's
  double dropout = 0;                      // of the embedding and of each residual branch, in training
  std::int64_t predict_tokens = 1;         // one head for each of the next tokens (arXiv:2404.19737)
  // Adapters of all layers.
  LoraOptions lora = {};
  at::TensorOptions tensor = {};  // options of the parameters

  // A copy with defaults filled in. Throws if fields contradict each other, with both values.
  DecoderConfig checked() const;
};

// A norm over the last dimension.
class DTENSOR_API Norm final : public Layer<Norm> {
 public:
  Norm(std::int64_t size, NormKind kind, double eps, at::TensorOptions options);
  // [..., features].
  at::Tensor forward(const at::Tensor& x) const { return without_hooks(x); }
  at::Tensor compute(const at::Tensor& x) const;
  void reset_parameters() override;
  // Parameters; undefined if the norm has none.
  at::Tensor weight, bias;

 private:
  std::int64_t size_;
  NormKind kind_;
  double eps_;
};

// The old name of Linear, which has adapters.
using Projection = Linear;

class DecoderAttention;

// State of a forward pass that all layers share.
struct DecoderPass {
  KVCache* cache = nullptr;            // null: there are no previous tokens
  std::int64_t first = 0;              // position of the first token
  std::vector<Rope::Angles> angles{};  // one for each of the configuration's ropes
  // Undefined, or int64 [batch, D] with the begins of each row's documents, which attention does not cross; as
  // AttentionOptions::row_cu_seqlens. Not with a cache or attention_softcap.
  at::Tensor documents{};
};

// Attention, and MLP or experts, with their norms and residual connections.
class DTENSOR_API DecoderBlock final : public Layer<DecoderBlock> {
 public:
  DecoderBlock(const DecoderConfig& config, std::int64_t layer);
  ~DecoderBlock() override;
  // Result of a call.
  struct Output {
    // Same shape as x.
    at::Tensor y;
    at::Tensor loss;  // loss of the router; undefined without experts
    // Both.
    TensorSlots tensors() { return {&y, &loss}; }
  };
  // x: [batch, sequence, hidden].
  Output forward(const at::Tensor& x, const DecoderPass& pass) const { return without_hooks(x, pass); }
  Output compute(const at::Tensor& x, const DecoderPass& pass) const;

 private:
  Norm attn_norm_;
  std::unique_ptr<DecoderAttention> attn_;
  std::unique_ptr<Norm> attn_post_norm_;
  Norm mlp_norm_;
  std::unique_ptr<MLP> mlp_;
  std::unique_ptr<MixtureOfExperts> moe_;
  std::unique_ptr<Norm> mlp_post_norm_;
  double dropout_;
};

// Embedding, blocks, norm and head.
class DTENSOR_API Decoder final : public Layer<Decoder> {
 public:
  explicit Decoder(const DecoderConfig& config);
  // The completed configuration, and the layers.
  const DecoderConfig& config() const { return config_; }
  const std::vector<std::unique_ptr<DecoderBlock>>& blocks() const { return blocks_; }

  // ids: int64 [batch, sequence]; positions start at 0, or at cache->length(), which grows by the sequence. Returns
  // logits [batch, sequence, vocabulary] in the parameters' dtype. Router losses are appended to `losses` if it is not
  // null.
  at::Tensor forward(const at::Tensor& ids, KVCache* cache = nullptr) const { return without_hooks(ids, cache); }
  at::Tensor compute(const at::Tensor& ids, KVCache* cache = nullptr, std::vector<at::Tensor>* losses = nullptr) const {
    return head(hidden(ids, cache, losses));
  }
  // Steps of compute(), of which a generator needs the head of the last token only, and a stage of a pipeline a part.
  // They are no calls of the decoder, whose own points and hooks do not run. The input of the first block, [batch,
  // sequence, hidden], for ids at positions from `first` on; what blocks share, for `count` tokens of these options;
  // the norm of the last block's result; all of these; the head of that norm.
  at::Tensor embed(const at::Tensor& ids, std::int64_t first = 0) const;
  DecoderPass pass(std::int64_t count, const at::TensorOptions& options, KVCache* cache = nullptr) const;
  at::Tensor norm(const at::Tensor& x) const { return norm_(x); }
  at::Tensor hidden(const at::Tensor& ids, KVCache* cache = nullptr, std::vector<at::Tensor>* losses = nullptr) const;
  // `ahead`: 0 for the logits of the next token, up to predict_tokens - 1 for those after it.
  at::Tensor head(const at::Tensor& hidden, std::int64_t ahead = 0) const;
  // [vocabulary, hidden], for losses that compute logits themselves.
  const at::Tensor& head_weight(std::int64_t ahead = 0) const { return head_layer(ahead).weight; }

 private:
  const Linear& head_layer(std::int64_t ahead) const;

  DecoderConfig config_;
  std::vector<Rope> ropes_;
  Embedding embed_;
  std::unique_ptr<Embedding> positions_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;
  Norm norm_;
  Linear lm_head_;
  std::vector<std::unique_ptr<Linear>> further_heads_;
};

// Embedding and head are split by vocabulary, attention by groups of heads that share keys (no head is divided), the
// MLP by its inner features: two all-reduces per layer and direction. Experts are left to apply_expert_parallel().
// `gather_logits`: the head's output is replicated, otherwise split by vocabulary.
DTENSOR_API ParallelPlan tensor_parallel_plan(const DecoderConfig& config, bool gather_logits = true);

}  // namespace dtensor::nn
